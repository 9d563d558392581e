"""Who takes dkrr's messages, and the handler of the command line."""

import logging
import sys

import pytest

from dkrr.runtime.displays import handlers_of, is_screen, logged_to_stderr, package_logger


@pytest.fixture
def without_others(monkeypatch):
    """Function that removes the handlers with which pytest captures messages, for the rest of the test."""
    return lambda: monkeypatch.setattr(logging.getLogger(), "handlers", [])


def test_messages_below_the_package_are_written_once_with_date_and_time(capsys, without_others):
    without_others()
    with logged_to_stderr() as handler:
        assert is_screen(handler)
        logging.getLogger("dkrr.fitting.run").info("%d rows", 7)
        logging.getLogger("dkrr.tiles.lock").warning("taken over")
        logging.getLogger("dkrr").debug("not shown")
        with logged_to_stderr() as second:
            assert second is None, "there is one already"
    logging.getLogger("dkrr").info("after the end")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(maxsplit=3)[3] for line in lines] == ["7 rows", "warning: taken over"]


def test_what_the_program_has_set_up_stays(capsys, without_others):
    without_others()
    handler = logging.StreamHandler(sys.stdout)
    package_logger.addHandler(handler)
    try:
        with logged_to_stderr() as own:
            assert own is None
            logging.getLogger("dkrr.fitting").warning("hello")
    finally:
        package_logger.removeHandler(handler)
    assert capsys.readouterr() == ("hello\n", "")


def test_a_handler_that_takes_nothing_does_not_count():
    logger = logging.getLogger("dkrr.test_logs")
    logger.propagate = False
    try:
        logger.addHandler(logging.NullHandler())
        logger.setLevel(logging.INFO)
        assert handlers_of(logger) == []
        taking = logging.StreamHandler()
        logger.addHandler(taking)
        assert handlers_of(logger) == [taking]
        assert handlers_of(logger, logging.DEBUG) == []
    finally:
        logger.handlers.clear()
        logger.propagate = True
