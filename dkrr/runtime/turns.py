"""Functions that take turns: each runs until it asks for something, and all requests are answered together."""

import contextvars
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dkrr.runtime.signals import ended_in_order

Ask = Callable[[Any], Any]
"""Called by a function with what it asks for; returns the answer."""
Serve = Callable[[Mapping[int, Any]], Mapping[int, Any]]
"""From the requests of all functions that have not ended, by number, to the answers of at least one of them."""


class AbandonedError(BaseException):
    """Ends a function whose answer will never come; a BaseException, so that no handler of errors takes it for one."""


def take_turns(functions: Sequence[Callable[[Ask], None]], serve: Serve) -> None:
    """Run functions one at a time, each until it asks; once all that are left wait, `serve` answers.

    So runs that were written one by one share the work of a step. Never do two of them run at the same time: each has a
    thread only to keep its place.

    Parameters
    ----------
    functions : sequence of callable
        Called with `ask`.
    serve : callable
        Called in the calling thread. Requests that it does not answer are among the next ones.

    Raises
    ------
    BaseException
        The first error of a function or of `serve`; the other functions are ended at their next request.
    """
    stepped = [_Stepped(function) for function in functions]
    with ended_in_order():  # the functions' own threads get no signals
        _take_turns(stepped, serve)


def _take_turns(stepped: "Sequence[_Stepped]", serve: Serve) -> None:
    try:
        waiting = dict[int, Any]()
        ready = list(range(len(stepped)))
        while True:
            for k in ready:
                waiting[k] = stepped[k].step()
                if stepped[k].has_ended:
                    del waiting[k]
            if not waiting:
                return
            answers = serve(dict(waiting))
            ready = sorted(answers)
            if not ready:
                raise ValueError(f"none of the {len(waiting)} requests was answered; expected at least one answer")
            for k in ready:
                stepped[k].answer = answers[k]
    finally:
        for one in stepped:
            one.abandon()


class _Stepped:
    """One function, in a thread that only ever runs while `step` waits for it."""

    def __init__(self, function: Callable[[Ask], None]) -> None:
        self.answer: Any = None
        self.has_ended = False
        self._function, self._request = function, None
        self._error: BaseException | None = None
        self._is_abandoned = False
        self._turn, self._pause = threading.Semaphore(0), threading.Semaphore(0)
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="dkrr-turns", daemon=True)
        self._has_begun = False

    def step(self) -> Any:
        """Let the function run to its next request, which is returned, or to its end."""
        if not self._has_begun:
            self._has_begun = True
            self._thread.start()
        self._turn.release()
        self._pause.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._request

    def abandon(self) -> None:
        """End the function, if it has not: it may first have to come to its next request."""
        if self._has_begun:
            self._is_abandoned = True
            self._turn.release()
            self._thread.join()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self._is_abandoned:
                self._function(self._ask)
        except AbandonedError:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.has_ended = True
            self._request = self.answer = None
            self._pause.release()

    def _ask(self, request: Any) -> Any:
        if self._is_abandoned:  # asked while it was being ended: no answer would come
            raise AbandonedError
        self._request = request
        self._pause.release()
        self._turn.acquire()
        if self._is_abandoned:
            raise AbandonedError
        answer, self.answer, self._request = self.answer, None, None
        return answer
