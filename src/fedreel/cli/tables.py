"""Tables for a terminal, a file or a pipe."""

from __future__ import annotations


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """To stdout. A file or a pipe gets whole cells, whatever the table's width."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, header_style="bold")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 1000
    console.print(table)
