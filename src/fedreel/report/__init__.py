"""The HTML report of a run, the page over several reports, the reproduction table, and runs side by side."""

from fedreel.report.compare import compare_table
from fedreel.report.index import Entry, write_index
from fedreel.report.page import write
from fedreel.report.table import write_table

__all__ = ["Entry", "compare_table", "write", "write_index", "write_table"]
