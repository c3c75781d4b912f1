"""Live progress on stderr: one bar a run, and plain lines where there is no terminal."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

__all__ = ["Progress"]


class Progress:
    """Bars for people at a terminal, one line a run for logs."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Bars(TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"),
                          TimeElapsedColumn(), console=self._console, disable=not self._console.is_terminal)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """One line that stays."""
        self._console.print(text, markup=False, highlight=False)

    @contextmanager
    def run(self, name: str, total: int, done: Callable[[], int]) -> Generator[Callable[[], None]]:
        """Show a run of `total` steps; call what this yields often, and it asks `done` how many there are."""
        if not self._console.is_terminal:
            self.say(f"{name}: {total} steps ...")
        task = self._bars.add_task(name, total=total)
        try:
            yield lambda: self._bars.update(task, completed=done())
            self._bars.update(task, completed=total)
        finally:
            self._bars.stop_task(task)
