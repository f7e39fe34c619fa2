"""The one error for bad input."""

from appo_jax.types import InputError


def test_an_error_is_one_line_whatever_it_quotes() -> None:
    assert str(InputError("file: two\nlines\r\nand\u2028more")) == "file: two lines and more"
