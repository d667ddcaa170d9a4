"""The published Python client against whatever serves envd's protocol on localhost:49983.

Takes no arguments. Prints one line a check; exits with 1 when one fails.
"""

import asyncio
import os
import time
import traceback
import uuid

os.environ["E2B_DEBUG"] = "true"
os.environ.setdefault("E2B_API_KEY", "e2b_" + "0" * 40)

from e2b import (  # noqa: E402
    AsyncSandbox,
    CommandExitException,
    FilesystemEventType,
    NotFoundException,
    PtySize,
    Sandbox,
    TimeoutException,
)

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def scratch(sandbox):
    path = f"smoke-{uuid.uuid4().hex}"
    sandbox.files.make_dir(path)
    return path


@check
def a_command_gives_its_output(sandbox):
    result = sandbox.commands.run("echo out; echo err >&2")
    assert result.stdout == "out\n", result
    assert result.stderr == "err\n", result
    assert result.exit_code == 0, result


@check
def a_failing_command_raises(sandbox):
    try:
        sandbox.commands.run("exit 7")
    except CommandExitException as error:
        assert error.exit_code == 7, error
        return
    raise AssertionError("exit 7 raised nothing")


@check
def environment_and_directory_are_used(sandbox):
    path = scratch(sandbox)
    result = sandbox.commands.run("echo $SMOKE; basename $PWD", envs={"SMOKE": "yes"}, cwd=path)
    assert result.stdout == f"yes\n{path}\n", result


@check
def stdin_reaches_a_background_command(sandbox):
    command = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.send_stdin(command.pid, "hello\n")
    got = []
    for stdout, _, _ in command:
        if stdout:
            got.append(stdout)
            break
    assert "".join(got) == "hello\n", got
    assert command.kill()


@check
def closing_stdin_ends_cat(sandbox):
    command = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.send_stdin(command.pid, "last words")
    sandbox.commands.close_stdin(command.pid)
    result = command.wait()
    assert result.stdout == "last words", result


@check
def a_background_command_can_be_connected_to(sandbox):
    command = sandbox.commands.run("sleep 0.5; echo late; sleep 0.2", background=True)
    command.disconnect()
    assert any(process.pid == command.pid for process in sandbox.commands.list())
    result = sandbox.commands.connect(command.pid).wait()
    assert "late" in result.stdout, result


@check
def a_killed_command_is_gone(sandbox):
    command = sandbox.commands.run("sleep 60", background=True)
    assert sandbox.commands.kill(command.pid)
    assert not sandbox.commands.kill(command.pid)
    result = sandbox.commands.run(f"kill -0 {command.pid} 2>/dev/null && echo alive || echo gone")
    assert result.stdout == "gone\n", result


@check
def a_command_that_takes_too_long_is_ended(sandbox):
    started = time.monotonic()
    try:
        sandbox.commands.run("sleep 30", timeout=1)
    except TimeoutException:
        assert time.monotonic() - started < 15
        return
    raise AssertionError("the timeout raised nothing")


@check
def a_terminal_works(sandbox):
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=20)
    sandbox.pty.resize(terminal.pid, PtySize(rows=30, cols=100))
    sandbox.pty.send_stdin(terminal.pid, b"stty size; echo do''ne; exit\n")
    output = b""
    for _, _, data in terminal:
        if data:
            output += data
    assert b"30 100" in output, output
    assert b"done" in output, output


@check
def files_are_written_and_read(sandbox):
    path = scratch(sandbox)
    info = sandbox.files.write(f"{path}/deep/er/file.txt", "contents ü")
    assert info.path.endswith("/deep/er/file.txt"), info
    assert sandbox.files.read(f"{path}/deep/er/file.txt") == "contents ü"
    data = os.urandom(1 << 20)
    sandbox.files.write(f"{path}/binary", data)
    assert bytes(sandbox.files.read(f"{path}/binary", format="bytes")) == data
    streamed = b"".join(sandbox.files.read(f"{path}/binary", format="stream"))
    assert streamed == data
    sandbox.files.write(f"{path}/empty", "")
    assert sandbox.files.read(f"{path}/empty") == ""


@check
def several_files_are_written_at_once(sandbox):
    path = scratch(sandbox)
    files = [{"path": f"{path}/{name}", "data": name} for name in ("one", "two", "three")]
    assert len(sandbox.files.write_files(files)) == 3
    assert sandbox.files.read(f"{path}/two") == "two"


@check
def directories_are_listed_moved_and_removed(sandbox):
    path = scratch(sandbox)
    sandbox.files.write(f"{path}/b/c.txt", "c")
    sandbox.files.write(f"{path}/a.txt", "a")
    assert [entry.name for entry in sandbox.files.list(path)] == ["a.txt", "b"]
    assert [entry.name for entry in sandbox.files.list(path, depth=2)] == ["a.txt", "b", "c.txt"]
    assert not sandbox.files.make_dir(path)
    moved = sandbox.files.rename(f"{path}/a.txt", f"{path}/moved.txt")
    assert moved.name == "moved.txt", moved
    assert not sandbox.files.exists(f"{path}/a.txt")
    info = sandbox.files.get_info(f"{path}/moved.txt")
    assert (info.size, info.permissions) == (1, "-rw-r--r--"), info
    sandbox.files.remove(path)
    assert not sandbox.files.exists(path)


@check
def what_is_missing_is_not_found(sandbox):
    for attempt in (sandbox.files.read, sandbox.files.list, sandbox.files.get_info):
        try:
            attempt("no/such/thing")
        except NotFoundException:
            continue
        raise AssertionError(f"{attempt} raised nothing")


@check
def a_watched_directory_tells_its_events(sandbox):
    path = scratch(sandbox)
    watcher = sandbox.files.watch_dir(path)
    sandbox.files.write(f"{path}/watched.txt", "x")
    time.sleep(0.3)
    kinds = [(event.name, event.type) for event in watcher.get_new_events()]
    watcher.stop()
    wanted = [FilesystemEventType.CREATE, FilesystemEventType.CHMOD, FilesystemEventType.WRITE]
    assert kinds == [("watched.txt", kind) for kind in wanted], kinds


@check
def a_tree_is_watched_recursively(sandbox):
    path = scratch(sandbox)
    watcher = sandbox.files.watch_dir(path, recursive=True)
    sandbox.files.make_dir(f"{path}/new/inner")
    time.sleep(0.2)
    sandbox.files.write(f"{path}/new/inner/file", "x")
    time.sleep(0.3)
    names = {event.name for event in watcher.get_new_events()}
    watcher.stop()
    assert {"new", "new/inner", "new/inner/file"} <= names, names


@check
def metadata_stays_with_a_file(sandbox):
    path = scratch(sandbox)
    sandbox.files.write(f"{path}/tagged", "x", metadata={"Origin": "smoke"})
    info = sandbox.files.get_info(f"{path}/tagged")
    assert info.metadata == {"origin": "smoke"}, info


@check
def compressed_transfers_work(sandbox):
    path = scratch(sandbox)
    text = "compress me " * 10_000
    sandbox.files.write(f"{path}/text", text, gzip=True)
    assert sandbox.files.read(f"{path}/text", gzip=True) == text


@check
def the_async_client_streams_and_watches(_):
    async def run():
        sandbox = await AsyncSandbox.create()
        # Absolute: commands begin in the working directory, files in the home.
        path = f"/tmp/smoke-{uuid.uuid4().hex}"
        await sandbox.files.make_dir(path)
        events = []
        handle = await sandbox.files.watch_dir(path, on_event=events.append)
        lines = []
        result = await sandbox.commands.run(
            f"for i in 1 2 3; do echo $i; touch {path}/$i; sleep 0.05; done",
            on_stdout=lines.append,
        )
        for _ in range(100):
            if {event.name for event in events} == {"1", "2", "3"}:
                break
            await asyncio.sleep(0.1)
        await handle.stop()
        assert result.stdout == "1\n2\n3\n", result
        assert "".join(lines) == "1\n2\n3\n", lines
        assert {event.name for event in events} == {"1", "2", "3"}, events

    asyncio.run(run())


def main():
    sandbox = Sandbox.create()
    failed = 0
    for function in CHECKS:
        name = function.__name__.replace("_", " ")
        try:
            function(sandbox)
            print(f"ok    {name}", flush=True)
        except Exception:
            failed += 1
            print(f"FAIL  {name}", flush=True)
            traceback.print_exc()
    print(f"{len(CHECKS) - failed} of {len(CHECKS)}", flush=True)
    # Not sys.exit: the client's threads may crash an interpreter that is going down.
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    main()
