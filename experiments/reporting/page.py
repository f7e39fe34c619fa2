"""The page: one HTML file that needs nothing else."""

import dataclasses
from collections.abc import Sequence

from experiments.reporting.figures import COLOURS, DARK_COLOURS, Drawing, file_name
from experiments.reporting.tables import Table
from experiments.reporting.videos import Video


@dataclasses.dataclass(frozen=True)
class Warned:
    """Something that the reader has to know before the numbers."""

    title: str
    lines: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Section:
    """Tables and figures under one heading."""

    title: str
    tables: Sequence[Table] = ()
    drawings: Sequence[Drawing] = ()
    notes: Sequence[str] = ()
    videos: Sequence[Video] = ()

    @property
    def id(self) -> str:
        """For links to it."""
        return file_name(self.title)

    @property
    def figures(self) -> list[dict[str, str]]:
        """What the page shows of the drawings."""
        return [
            {"svg": one.svg(), "title": one.title, "caption": one.caption} for one in self.drawings
        ]


def render(
    title: str,
    about: Sequence[str],
    counts: str,
    built: str,
    warnings: Sequence[Warned],
    sections: Sequence[Section],
) -> str:
    """The HTML. All text is escaped: folders and settings may hold anything."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("experiments.reporting", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.jinja").render(
        title=title,
        about=about,
        counts=counts,
        built=built,
        warnings=[one for one in warnings if one.lines],
        sections=[one for one in sections if one.tables or one.drawings or one.notes or one.videos],
        colours=COLOURS,
        dark_colours=DARK_COLOURS,
    )
