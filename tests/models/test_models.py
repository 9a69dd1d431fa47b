"""Properties of every model: shapes, gradients, learning, and independence of the cache."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from hotrows.models import MODELS, Model, make_model, options_of

SMALL = {
    "dlrm": {"bottom": (16,), "top": (32,)},
    "wide-deep": {"hidden": (32,)},
    "deepfm": {"hidden": (32,)},
    "dcn": {"hidden": (32,), "num_cross": 2},
    "dcn-v2": {"hidden": (32,), "num_cross": 2},
}
ROWS = (300, 50, 20)
every_model = pytest.mark.parametrize("name", MODELS)
every_kind = pytest.mark.parametrize("name", SMALL)


def small(name: str, num_dense: int = 4) -> Model:
    torch.manual_seed(0)
    return make_model(name, num_dense, len(ROWS), dim=4, **SMALL[name])


def bags_for(model: Model, cache: int | str, lr: float = 0.1) -> hotrows.EmbeddingBagCollection:
    tables = [hotrows.Table(f"t{i}", rows) for i, rows in enumerate(ROWS)]
    optimizer = hotrows.optim.Adagrad(lr=lr)
    return hotrows.EmbeddingBagCollection(tables, model.embedding_dim, cache=cache, optimizer=optimizer)


def batches(num: int, size: int = 64, num_dense: int = 4) -> list[hotrows.Batch]:
    """Batches whose labels depend on the ids and, weakly, on the first dense feature."""
    random = torch.Generator().manual_seed(1)
    found = []
    for _ in range(num):
        uniform = torch.rand(size, len(ROWS), generator=random)
        ids = (uniform.square() * torch.tensor(ROWS)).long()
        dense = torch.randn(size, num_dense, generator=random)
        score = (ids % 2).float().sum(1) - 1.5 + 0.3 * dense[:, :1].sum(1)
        found.append(hotrows.Batch(dense, ids, (score > 0).float()))
    return found


def train(model: Model, bags: hotrows.EmbeddingBagCollection, data: list[hotrows.Batch], depth: int) -> list[float]:
    dense_optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for batch in hotrows.lookahead(data, bags, depth=depth):
        embedded = bags(batch.ids)
        assert isinstance(embedded, Tensor)
        loss = binary_cross_entropy_with_logits(model(batch.dense, embedded), batch.label)
        dense_optimizer.zero_grad()
        loss.backward()
        dense_optimizer.step()
        losses.append(loss.item())
    return losses


@every_model
def test_one_logit_per_sample(name: str) -> None:
    model = make_model(name, num_dense=13, num_features=5)
    logits = model(torch.randn(7, 13), torch.randn(7, 5, model.embedding_dim))
    assert logits.shape == (7,)
    assert logits.isfinite().all()


@every_model
def test_gradients_reach_every_parameter_and_the_rows(name: str) -> None:
    torch.manual_seed(0)
    model = make_model(name, num_dense=3, num_features=5, dim=8)
    dense, embedded = torch.randn(32, 3), torch.randn(32, 5, model.embedding_dim, requires_grad=True)
    model(dense, embedded).square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.count_nonzero() > 0, parameter_name
    assert embedded.grad is not None
    assert (embedded.grad.abs().sum((0, 1)) > 0).all()


@every_kind
@pytest.mark.parametrize("num_dense", [4, 0])
def test_learns(name: str, num_dense: int) -> None:
    model = small(name, num_dense)
    losses = train(model, bags_for(model, cache="100%"), batches(150, num_dense=num_dense), depth=4)
    assert sum(losses[-10:]) / 10 < 0.6 * sum(losses[:5]) / 5


@every_kind
def test_a_small_cache_gives_the_same_model(name: str) -> None:
    data = batches(25, size=16)
    expected, found = small(name), small(name)
    all_rows, some_rows = bags_for(expected, cache="100%"), bags_for(found, cache=45)
    assert train(expected, all_rows, data, depth=0) == train(found, some_rows, data, depth=4)
    assert some_rows.stats().evictions > 0
    for (parameter_name, ours), theirs in zip(expected.named_parameters(), found.parameters(), strict=True):
        assert torch.equal(ours, theirs), parameter_name
    for table in all_rows.tables:
        assert torch.equal(all_rows.weight(table.name), some_rows.weight(table.name))


@every_kind
def test_the_seed_is_the_callers(name: str) -> None:
    first, again = small(name), small(name)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


@every_kind
@pytest.mark.gpu
def test_takes_lower_precision(name: str) -> None:
    model = small(name).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(torch.randn(5, 4).cuda(), torch.randn(5, len(ROWS), model.embedding_dim).cuda())
    assert logits.shape == (5,)
    logits.float().sum().backward()


@every_kind
def test_wrong_shapes_are_named(name: str) -> None:
    model = small(name)
    with pytest.raises(ValueError, match=rf"embedded is \[5, 3, 99\], give \[B, 3, {model.embedding_dim}\]"):
        model(torch.randn(5, 4), torch.randn(5, 3, 99))
    with pytest.raises(ValueError, match=r"dense is \[5, 2\], give \[5, 4\]"):
        model(torch.randn(5, 2), torch.randn(5, 3, model.embedding_dim))


@every_kind
def test_dropout_changes_what_is_trained_and_not_what_is_evaluated(name: str) -> None:
    torch.manual_seed(0)
    model = make_model(name, 4, len(ROWS), dim=4, **SMALL[name], dropout=0.3)
    inputs = torch.randn(5, 4), torch.randn(5, len(ROWS), model.embedding_dim)
    assert not torch.equal(model(*inputs), model(*inputs))
    model.eval()
    assert torch.equal(model(*inputs), model(*inputs))


def test_options_of_a_preset_have_its_defaults() -> None:
    assert options_of("dlrm:freqcache")["bottom"].default == (512, 256)
    assert list(options_of("dcn-v2")) == ["num_cross", "rank", "hidden", "dropout"]


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"model is 'dlmr': known are dlrm, dlrm:freqcache, .*dcn-v2"):
        make_model("dlmr", 13, 26)
    with pytest.raises(ValueError, match="model 'dlrm' has no option 'hidden': it has bottom, top"):
        make_model("dlrm", 13, 26, hidden=(3,))


def test_schemas_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="num_features is 0, it must be a whole number from 1 up"):
        make_model("deepfm", 13, 0)
    with pytest.raises(ValueError, match="no pair to multiply"):
        make_model("dlrm", 0, 1)
    with pytest.raises(ValueError, match="dim is 0"):
        make_model("dlrm", 13, 26, dim=0)
    with pytest.raises(ValueError, match=r"layer sizes are \[13, 0, 16\]"):
        make_model("dlrm", 13, 26, bottom=(0,))
    with pytest.raises(ValueError, match=r"num_cross is 1\.5, it must be a whole number from 0 up"):
        make_model("dcn", 13, 2, num_cross=1.5)
    with pytest.raises(ValueError, match="rank is 45, it must be a whole number from 1 to 44"):
        make_model("dcn-v2", 13, 2, rank=45)
