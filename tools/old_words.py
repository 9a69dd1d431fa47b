"""The words that were replaced, and what counts as a use of each: the definitions of tools/words.py.

- `names` are identifiers: variables, functions, classes, attributes. Also names in backticks in texts.
- `parts` are words within an identifier or the name of a module, split at underscores and capitals, singular or plural.
- `modules` are the ends of paths of modules and folders, such as `cache/lanes.py`.
- `code` are regular expressions that are searched in Python code, without its comments and strings.
- `prose` are regular expressions that are searched in comments, strings and Markdown. The names of test functions are
  sentences, so they count as prose.
- `where` are the only files in which the word can be the mechanism; elsewhere it is an ordinary word.
- `allowed` are the exceptions, each with its reason. A use is allowed if the expression matches the line (in prose: the
  text) around it.
"""

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Allowed:
    """What does not count, and why."""

    pattern: str
    why: str
    where: tuple[str, ...] = ("*",)  # paths, as for fnmatch

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return _compile(self.pattern)


@dataclass(frozen=True)
class Word:
    """A word that was replaced, and what counts as a use of it."""

    old: str
    new: str
    names: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    prose: tuple[str, ...] = ()
    where: tuple[str, ...] = ("*",)  # paths where the word can be the mechanism
    allowed: tuple[Allowed, ...] = ()

    @cached_property
    def prose_regexes(self) -> list[re.Pattern[str]]:
        return [_compile(pattern) for pattern in self.prose]

    @cached_property
    def code_regexes(self) -> list[re.Pattern[str]]:
        return [re.compile(pattern) for pattern in self.code]

    @cached_property
    def all_parts(self) -> set[str]:
        return {*self.parts, *(_plural(part) for part in self.parts)}

    def is_name(self, name: str) -> bool:
        return name in self.names or not self.all_parts.isdisjoint(split_name(name))


def _compile(pattern: str) -> re.Pattern[str]:
    """A pattern for texts: a space matches a line break too."""
    return re.compile(pattern.replace(" ", r"\s+"))


def _plural(part: str) -> str:
    return f"{part[:-1]}ies" if part.endswith("y") else f"{part}s"


def split_name(name: str) -> list[str]:
    """The words of an identifier, in lower case."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name)]


DENSE = ("src/hotrows/dense/*", "tests/dense/*", "benchmarks/micro/*")
DATA = (
    "src/hotrows/data/*", "tests/data/*", "src/hotrows/profile/*", "tests/profile/*", "benchmarks/loader.py",
    "benchmarks/prepare.py", "tests/cli/*", "src/hotrows/cli/*",
)  # fmt: skip
PLANNING = (
    "src/hotrows/cache/*", "src/hotrows/loop/*", "src/hotrows/nn/*", "src/hotrows/graphs/*", "src/hotrows/runtime/*",
    "src/hotrows/ops/plan/*", "src/hotrows/ops/unique/*", "src/hotrows/strategies/*", "tests/cache/*", "tests/loop/*",
    "tests/nn/*", "tests/graphs/*", "tests/runtime/*", "tests/ops/test_plan.py", "tests/ops/test_unique.py",
    "tests/strategies/*", "tests/*.py", "benchmarks/planner.py", "benchmarks/turn.py", "docs/*", "README.md",
    "CONTRIBUTING.md", "CHANGELOG.md", "*.md",
)  # fmt: skip

WORDS: tuple[Word, ...] = (
    Word(
        "lane", "stream", parts=("lane",), prose=(r"\b[Ll]anes?\b",),
        allowed=(
            Allowed(r"lanes?|_LANES_PER_WARP", "a thread of a warp", ("src/hotrows/ops/*", "src/hotrows/dense/*")),
        ),
    ),
    Word(
        "mark", "event", names=("mark", "marks", "_mark", "_marks", "Mark", "new_mark", "last_mark"),
        prose=(r"\b[Mm]arks?\b",),
        allowed=(
            Allowed(r"pytest\.mark\b|pytest mark|\bmarks=", "pytest's marks of tests"),
            Allowed(r"byte(_| )order(_| )mark", "the first bytes of some files"),
            Allowed(r"\b_?marks?\b", "the marks of a plot", ("src/hotrows/report/*", "tests/report/*")),
        ),
    ),
    Word("hold_caller, caller_mark", "wait_event, record_event", names=("hold_caller", "caller_mark"),
         prose=(r"hold_caller|caller_mark",)),
    Word(
        "RowGroup, group", "RowCache",
        names=("RowGroup", "group", "groups", "_group", "_groups", "group_of", "size_groups", "num_groups", "by_group"),
        prose=(r"\bRowGroup\b", r"\b[Gg]roups?\b"),
        allowed=(
            Allowed(r"\w*param(eter)?_groups?|[Pp]aram(eter)? groups?|param_group", "torch.optim's parameter groups"),
            Allowed(
                r"\b_?groups?\b", "torch.optim's parameter groups",
                ("src/hotrows/optim.py", "src/hotrows/graphs/*", "src/hotrows/train/*", "tests/graphs/*",
                 "src/hotrows/dense/optimizer_override.py", "tests/dense/test_optimizer_override.py",
                 "tests/test_optim.py"),
            ),
            Allowed(r"`group\[", "torch.optim's parameter groups"),
            Allowed(r"\.groups?\(", "a match of a regular expression"),
            Allowed(r"\b\w*groups?\b", "Parquet row groups, Spark groups, groups of a log", DATA),
            Allowed(r"Parquet('s)? row groups?|row groups? of (a )?Parquet", "Parquet row groups"),
            Allowed(r"\b(num|_)?_?groups?\b", "coalesced batches that belong together, or their plan buffers",
                    ("src/hotrows/cache/planning/*", "src/hotrows/loop/graph_planning.py", "tests/cache/planning/*",
                     "tests/ops/test_plan.py")),
            Allowed(r"process[_ ]groups?|group_by|groupby|groupBy", "of processes; grouping by a key"),
            Allowed(r"\"Group\"|console import Group", "rich's class", ("src/hotrows/profile/show.py",)),
            Allowed(r"\bgroup\b", "one group of command-line options or processes", ("tools/*",)),
            Allowed(r"of a group's parameters|group's parameters", "torch.optim's parameter groups"),
            Allowed(r"\bgroups?\b", "groups of bars in a plot, of rows in a table of a page",
                    ("src/hotrows/report/*", "src/hotrows/reproduce/*")),
        ),
    ),
    Word(
        "Request", "BatchTicket", names=("Request", "request", "requests", "_requests", "_request"),
        prose=(r"\b[Rr]equests?\b",),
        allowed=(
            Allowed(r"\w*([Rr]equest|REQUEST)_?([Bb]uffer|BUFFER)\w*|[Rr]equest buffers?",
                    "a request buffer of the planning graph"),
            Allowed(r"on request|on_request", "an everyday phrase"),
            Allowed(r"\brequests\b", "request buffers",
                    ("src/hotrows/cache/planning/*", "tests/cache/planning/*", "tests/ops/test_plan.py")),
            Allowed(r"\brequest(: pytest\.FixtureRequest|\.(param|node|config)|[,)])", "pytest's fixture of that name",
                    ("tests/*",)),
            Allowed(r"\brequests?\b", "a request of a web server or the like", (*DATA, "src/hotrows/report/*")),
            Allowed(r"[Pp]ull requests?", "GitHub's"),
        ),
    ),
    Word(
        "Flight", "BatchTicket", parts=("flight",), prose=(r"\b[Ff]lights?\b",),
        allowed=(Allowed(r"\w*[Ii]n_?[Ff]light\w*|\w*IN_FLIGHT\w*|[Ii]n flight", "'in flight' is the field's word"),),
    ),
    Word("Ahead", "BatchTicket", names=("Ahead",), prose=(r"`Ahead`",)),
    Word("_Entry, _Coming", "BatchTicket", names=("_Entry", "_Coming", "COMING", "COMING_PLACE"),
         prose=(r"`_(Entry|Coming)`",)),
    Word(
        "party, party member", "coalesced batches",
        names=("member", "members", "num_members"), parts=("party",),
        prose=(r"\b[Pp]art(y|ies)\b", r"\bparty members?\b"),
        allowed=(
            Allowed(r"[Tt]hird(-|_| )part(y|ies)", "third-party software"),
            Allowed(r"\bmembers?\b", "a member of an archive, or of a set",
                    ("benchmarks/peers/*", "src/hotrows/profile/*", "src/hotrows/ops/plan/kernel_sets.py")),
            Allowed(r"\bmembers?\b", "the members of a gzip file", DATA),
        ),
    ),
    Word(
        "hold, drop (of tickets)", "retain, release", names=("hold", "drop", "_hold", "_drop"),
        prose=(r"\b(holds?|held|drops?|dropped) (the |a |its |each |every )?tickets?\b",
               r"\b(plan|batch|ticket) is (held|dropped)\b"),
        allowed=(
            Allowed(r"\.drop\(|\bdrop\b", "columns of a table of data are dropped", DATA),
            Allowed(r"\bdrop\b", "a dropout layer", ("tests/graphs/test_training_step.py",)),
        ),
    ),
    Word(
        "land", "released", names=("land",), parts=("landed", "landing"),
        prose=(r"\b([Ll]ands?|[Ll]anded|[Ll]anding)\b",),
        allowed=(Allowed(r"weights land where", "an everyday word, in the name of a test"),),
    ),
    Word("bury", "keep_alive_until", names=("bury", "_bury", "buried", "_buried"), prose=(r"\b[Bb]ur(y|ies|ied)\b",)),
    Word("abandon", "release_later", names=("abandon", "_abandon", "abandoned", "_abandoned"),
         prose=(r"\b[Aa]bandon(s|ed)?\b",)),
    Word(
        "ring", "PlanningGraph", parts=("ring",), prose=(r"\b[Rr]ings?\b",), modules=("ring.py", "seating.py"),
        allowed=(Allowed(r"ring(-|_| )buffers?|RingBuffer", "the field's word for a buffer that is used in a circle"),),
    ),
    Word(
        "place", "request buffer",
        names=("place", "places", "_places", "next_place", "num_places", "NUM_PLACES", "PLACE", "COMING_PLACE",
               "place_of"),
        prose=(r"\b([Aa]|[Tt]he|[Ii]ts|[Tt]heir|each|one|next|same|every|this|whose|no|of) places?\b",
               r"\b[Pp]laces\b"),
        where=PLANNING,
        allowed=(
            Allowed(r"\.place\(|def place\(|\.place\[|import place\b", "the verb: to place rows in slots"),
            Allowed(r"takes? (the )?place|in the first place|\bin (one )?place\b|\w*in_place", "everyday phrases"),
            Allowed(r"places (rows|missing rows|nothing|no|them|every|each)|_places_|places_nothing",
                    "the verb: to place rows in slots"),
            Allowed(r"\bplaces?\b", "places of the decimal point, of files, of the disk", ("docs/results/*",)),
        ),
    ),
    Word("seat", "plan buffer", parts=("seat", "seating"), prose=(r"\b[Ss]eats?\b",)),
    Word(
        "stall (as a row of seats)", "plan buffers", parts=("stall",), prose=(r"\b[Ss]talls?\b",),
        where=PLANNING,
        allowed=(
            Allowed(r"\b_?stall(s|_seconds|ed)\b|the stall\b|\bstall seconds|- stalled",
                    "a wait for rows: the statistic `stalls` is public"),
            Allowed(r"\b[Ss]talls?\b", "a wait for rows: the statistic `stalls` is public",
                    ("*.md", "src/hotrows/strategies/*")),
        ),
    ),
    Word(
        "turn", "iteration", parts=("turn",), modules=("benchmarks/turn.py", "benchmarks/test_turn.py"),
        prose=(r"\b[Tt]urns?\b",),
        allowed=(
            Allowed(r"\bin turns?\b|\b[Tt]ake turns\b|by turns|gets its turn", "everyday phrases: one after the other"),
            Allowed(r"\bturns\b", "a repetition of a measurement", ("benchmarks/prepare.py",)),
            Allowed(r"\b[Tt]urns? (\w+ ){0,5}?(into|on|off|out|around)\b",
                    "the verb: to turn into, on, off, out"),
            Allowed(r"\w*(?i:turn)\w*", "the dense layers' words, which are no part of the core", DENSE),
        ),
    ),
    Word(
        "told", "readback", parts=("told",), prose=(r"`\w*told\w*`",),
    ),
    Word("late (numbers)", "readback", names=("late", "Late", "late_numbers", "LateNumbers", "_late"),
         prose=(r"\b[Ll]ate numbers?\b",)),
    Word("settle", "resolve", parts=("settle", "settled"), prose=(r"\b[Ss]ettle(s|d)?\b",)),
    Word(
        "reach, patience (of the pipeline)", "depth, back-off", names=("reach", "_reach", "patience", "_patience"),
        prose=(r"\b[Pp]atience\b", r"\bpipeline's reach\b"), where=("src/hotrows/loop/*", "tests/loop/*"),
    ),
    Word("keeps_last (of the pipeline)", "retains_last",
         names=("keeps_last", "_known_keeps_last", "stop_keeping_last", "KEEP_LAST", "keep_last"),
         prose=(r"\bkeeps?_last\b",)),
    Word("Placing, ALL_OR_NOTHING, WHAT_FITS, NOTHING", "Placement: ATOMIC, SPILL, READ_ONLY",
         names=("Placing", "ALL_OR_NOTHING", "WHAT_FITS", "NOTHING"),
         prose=(r"\b(Placing|ALL_OR_NOTHING|WHAT_FITS)\b", r"^\"NOTHING\"$")),
    Word(
        "contents (of a cache)", "maintenance", modules=("cache/contents.py", "cache/test_contents.py"),
        code=(r"\bcache import contents\b", r"\bcache\.contents\b",
              r"\bcontents\.(flush|reload|pin|unpin|preload\w*)\b"),
        prose=(r"cache[/.]contents",),
        # `stores.contents.Contents` (records on their way into a copy of a store), the table of contents of a report
        # and the contents of a file are other ideas, and ordinary uses of the word.
    ),
    Word(
        "resident", "identity_planner", parts=("resident",), prose=(r"\b[Rr]esident\b",),
        allowed=(Allowed(r"resident(_| )(set|size)", "the resident set of a process"),),
    ),
    Word(
        "fused (planning)", "kernel_planner", parts=("fused",), modules=("cache/fused.py",),
        prose=(r"cache[/.]fused|\bfused (ring|planner|turn|plan)\b",),
        where=(*PLANNING, "tests/ops/test_plan.py"),
        allowed=(
            Allowed(r"\bfused=|\"fused\"|_fused_\w+|replace_fused_steps|is_fused|'s fused"
                    r"|fused (optimizers?|operator|implementation|steps?)",
                    "the fused implementations of torch.optim"),
            Allowed(r"\bfused\b", "one kernel in place of several, the field's word",
                    ("tests/ops/test_backward_update.py", "tests/dense/*")),
        ),
    ),
    Word("upcoming", "next_use", parts=("upcoming",), prose=(r"\b[Uu]pcoming\b",)),
    Word("early_reads", "stale_reads", names=("early_reads", "EarlyRead", "EarlyReads", "early_read"),
         prose=(r"\b[Ee]arly[_ ]reads?\b",)),
    Word("from_host", "host_copy", names=("from_host", "FromHost"), prose=(r"\bfrom_host\b",)),
    Word("memsets (the module)", "memset_nodes", modules=("memsets.py", "test_memsets.py"),
         code=(r"\bimport memsets\b", r"\bmemsets\.\w"), prose=(r"cache[/.]memsets|\bmemsets\.py",)),
    Word("uninterrupted", "defer_sigint", names=("uninterrupted", "Uninterrupted"), prose=(r"\b[Uu]ninterrupted\b",)),
    Word(
        "clock (of streams)", "timing", modules=("cache/clock.py", "cache/test_clock.py"),
        code=(r"\bcache import clock\b", r"\bcache\.clock\b", r"\bclock\.(Stopwatch|timestamp|TimedStream)\b"),
        prose=(r"cache[/.]clock|`clock`",),
        # `StageClock` tells the wall time of the stages of a loop, and tests have clocks of their own: ordinary uses.
    ),
    Word("mover, movers", "transfer", parts=("mover",), prose=(r"\b[Mm]overs?\b",)),
    Word("scan (the module)", "victim_scan", modules=("cache/scan.py", "cache/test_scan.py"), names=("Scan",),
         code=(r"\bcache import scan\b", r"\bcache\.scan\b"), prose=(r"cache[/.]scan\b",)),
    Word("add_up", "segment_sum", names=("add_up",), modules=("ops/add_up",), prose=(r"\badd_up\b",)),
    Word("row_update", "row_optimizer", names=("row_update",), modules=("ops/row_update",), prose=(r"\brow_update\b",)),
    Word("update_rows", "backward_update", names=("update_rows",), modules=("ops/update_rows", "micro/update_rows.py"),
         prose=(r"\bupdate_rows\b",)),
    Word("select (the operation)", "select_victims", modules=("ops/select/", "ops/test_select.py"),
         code=(r"\bops\.select\b", r"\bops import select\b"), prose=(r"ops[/.]select\b",)),
    Word(
        "distinct (the operation, rows)", "unique", parts=("distinct",),
        modules=("ops/distinct",), prose=(r"\b[Dd]istinct rows?\b", r"`Distinct`|`distinct`|ops[/.]distinct"),
        allowed=(
            Allowed(r"\b\w*[Dd]istinct\w*( rows?)?\b", "distinct ids of a data set, as SQL has it", DATA),
            Allowed(r"must be distinct", "an ordinary adjective"),
            Allowed(r"distinct rows", "the words of recorded results", ("docs/results/*",)),
        ),
    ),
    Word("row_table", "hash_table", names=("row_table",), modules=("ops/row_table",), prose=(r"\brow_table\b",)),
    Word("renumber", "remap", names=("renumber", "renumbered"), modules=("ops/renumber",),
         prose=(r"\b[Rr]enumber(s|ed)?\b",)),
    Word(
        "deliver", "write_to_address", names=("deliver", "_deliver", "_delivered", "delivered"),
        modules=("ops/deliver",), prose=(r"\b[Dd]eliver(s|ed)?\b",),
        allowed=(
            Allowed(r"(SIGINT|[Ii]nterrupt|signal)[^.]{0,60}deliver(s|ed)?|Deliver a SIGINT|Ctrl-C is delivered",
                    "a signal is delivered"),
            Allowed(r"\b_deliver\b", "a signal is delivered", ("src/hotrows/runtime/defer_sigint.py",)),
        ),
    ),
    Word("dense_step", "dense_optimizer", names=("dense_step",), modules=("ops/dense_step", "micro/dense_step.py"),
         prose=(r"\bdense_step\b",)),
    Word("click_loss", "bce_loss", names=("click_loss",), modules=("ops/click_loss",), prose=(r"\bclick_loss\b",)),
    Word("wide_input", "wide_deep_input", names=("wide_input",), modules=("ops/wide_input", "micro/wide_input.py"),
         prose=(r"\bwide_input\b",)),
    Word("nn: module, function, updates, tables, deduplicated", "base, autograd, accumulation, build, unique_ids",
         modules=("nn/module.py", "nn/function.py", "nn/updates.py", "nn/tables.py", "nn/deduplicated.py",
                  "nn/test_updates.py", "nn/test_function.py", "nn/test_module.py"),
         code=(r"hotrows\.nn\.(module|function|updates|tables|deduplicated)\b",),
         prose=(r"\bnn[/.](module|function|updates|tables|deduplicated|test_updates)\b",)),
    Word("train: answers, batch_form, dense_steps, recordable",
         "graph_outputs, batch_pytree, optimizer_override, capturable_optimizers",
         names=("Answers", "batch_form", "dense_steps", "recordable"),
         modules=("train/answers.py", "train/batch_form.py", "train/dense_steps.py", "train/recordable.py",
                  "train/graphs.py"),
         code=(r"hotrows\.train\.(answers|batch_form|dense_steps|recordable|graphs)\b",),
         prose=(r"\b(batch_form|dense_steps|recordable)\b", r"\btrain[/.](answers|graphs|test_graphs)\b")),
    Word("Plan.batch, Plan.number", "plan_number, batch_number",
         code=(r"\b_?(plan|access|planner|made|first|second)\.(batch|number)\b", r"\.plan\([^)]*\bnumber="),
         prose=(r"`(Plan|plan|access)\.(batch|number)`", r"\baccess\.(batch|number)\b")),
)  # fmt: skip
