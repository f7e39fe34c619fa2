"""The one error for bad input."""

from appo_jax.types import InputError, first_line


def test_an_error_is_one_line_whatever_it_quotes() -> None:
    assert str(InputError("file: two\nlines\r\nand\u2028more")) == "file: two lines and more"


def test_first_line() -> None:
    assert first_line(ValueError("one\ntwo")) == "one"
    for message in ("", "\ntwo"):
        assert first_line(ValueError(message)) == "ValueError"
