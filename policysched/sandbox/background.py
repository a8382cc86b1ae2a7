"""Tasks that run beside the sandbox until it stops."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any


def run_in_background(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """Start `work`, and cancel it when the stack is closed."""
    task = asyncio.create_task(work)
    task.add_done_callback(_log_task_failure)
    stack.push_async_callback(_stop, task)
    return task


def _log_task_failure(task: "asyncio.Task[None]") -> None:
    """Log the failure of a task; otherwise the sandbox would seem to hang."""
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": "a task of the sandbox failed", "exception": error, "task": task}
        asyncio.get_running_loop().call_exception_handler(context)


async def _stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
