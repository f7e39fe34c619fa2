"""Files of others, in the layouts in which the field publishes them: a table of formats.

A format is a function from a `Request` to what came out, `Imported`, and a line here.
"""

from collections.abc import Mapping

from appo_jax.data.formats import (
    arrays,
    cpl,
    d4rl,
    ipl,
    lire_labels,
    lire_replay,
    minari_set,
    pickled_labels,
)
from appo_jax.data.formats.format import Format, Imported, Request
from appo_jax.types import InputError

__all__ = ["FORMATS", "Format", "Imported", "Request", "read"]

_POINTING = ("dataset", "segment_length")
_CARRYING = ("dataset", "drop_last_step")
FORMATS: Mapping[str, Format] = {
    "lire": Format("a folder of LiRE's replay buffers", lire_replay.read, ("size",)),
    "lire-independent": Format(
        "a folder of LiRE's human labels: _Independent.txt", lire_labels.independent, _POINTING
    ),
    "lire-seqrank": Format("the same, _SeqRank.txt", lire_labels.seqrank, _POINTING),
    "lire-ranked": Format("the same, _RLT_<k>.txt", lire_labels.ranked, _POINTING),
    "ipl": Format("an .npz file of IPL's preferences", ipl.preferences, _CARRYING),
    "ipl-transitions": Format("a folder of IPL's episodes", ipl.transitions),
    "cpl": Format("an .npz file of CPL's segments", cpl.read, (*_CARRYING, "score")),
    "pt-labels": Format(
        "a folder of PT's or DPPO's human labels", pickled_labels.preference_transformer, _POINTING
    ),
    "crowd-labels": Format(
        "a folder of Clean-Offline-RLHF's labels", pickled_labels.crowd, _POINTING
    ),
    "d4rl": Format("an HDF5 file like D4RL's", d4rl.read),
    "arrays": Format("an .npz file, or a folder of .npy files, of your own", arrays.read),
    "minari": Format("the folder of a Minari data set", minari_set.read),
}


def read(format: str, request: Request) -> Imported:
    """Read a source in one of the `FORMATS`.

    Raises InputError for an unknown format, an option that it doesn't read, a source that isn't
    there, and whatever in it isn't as the format says.
    """
    if format not in FORMATS:
        raise InputError(f"format {format!r}: expected {', '.join(FORMATS)}")
    found = FORMATS[format]
    for name in ("dataset", "size", "segment_length", "score", "drop_last_step"):
        if name not in found.options and getattr(request, name) != getattr(Request, name):
            raise InputError(f"{name}: format {format} reads no such option, expected it left out")
    if not request.source.exists():
        raise InputError(f"{request.source}: not there, expected {found.help}")
    return found.read(request)
