"""The report of a run: one page that shows what happened, without a network or other files."""

from hotrows.report.page import write_report as write_report
