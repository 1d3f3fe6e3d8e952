"""What only a process of its own shows: pipes, signals and what gets imported."""

import signal
import subprocess
import sys

# Everything that `forwardpass run` may import before the library itself.
RUN_IMPORTS = {
    "forwardpass",
    "forwardpass.catalog",
    "forwardpass.catalog.entries",
    "forwardpass.cli",
    "forwardpass.cli.fastparse",
    "forwardpass.cli.option_kinds",
    "forwardpass.cli.shared_options",
    "forwardpass.cli.options",
    "forwardpass.cli.output",
    "forwardpass.cli.progress",
    "forwardpass.cli.run",
    "forwardpass.config",
    "forwardpass.errors",
}
HEAVY = {"aiohttp", "anyio", "asyncio", "click", "httptools", "huggingface_hub", "hypothesis", "matplotlib", "msgspec",
         "prometheus_client", "pydantic", "pytest", "rich", "starlette", "torch", "transformers", "typer", "uvicorn"}


def top_level(modules):
    return {module.partition(".")[0] for module in modules}


def test_run_imports_only_what_it_needs(program, model_file):
    process = program("run", "hello", "--model", model_file, modules=True)
    _, err = process.communicate()
    assert process.returncode == 0
    modules = set(err.decode().splitlines()[-1].split())
    assert {module for module in modules if module.startswith("forwardpass")} == RUN_IMPORTS
    others = top_level(modules) - set(sys.stdlib_module_names) - {"forwardpass", "fake_model"}
    assert not {name for name in others if name in HEAVY or name in ("numpy", "jinja2", "tokenizers")}


def test_piping(program, model_file):
    process = program("run", "-", "--raw", "--model", model_file)
    out, err = process.communicate(b"Once upon a time")
    assert process.returncode == 0
    assert out.decode().startswith("Light is scattered.\nCafé 猫")
    assert err.startswith(b"16 prompt tokens")


def test_a_closed_pipe_is_quiet(program, model_file):
    process = program("run", "-", "--model", model_file)
    process.stdout.close()
    process.stdin.write(b"hello")
    process.stdin.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0
    process.stderr.close()


def test_output_encoding_that_lacks_a_character(program, model_file):
    process = program("run", "hello", "--model", model_file, env={"PYTHONIOENCODING": "ascii"})
    out, _ = process.communicate()
    assert process.returncode == 0
    assert b"Caf? ?" in out


def test_control_c_ends_run_with_130(program, model_file):
    process = program("run", "hang", "--model", model_file)
    assert process.stdout.read(5) == b"Light"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (130, b"\n", b"")


def test_control_c_in_chat_stops_the_answer_and_not_the_program(program, model_file):
    process = program("chat", "--model", model_file)
    process.stdin.write(b"hang\n")
    process.stdin.flush()
    assert process.stdout.read(5) == b"Light"
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == b"(stopped)\n"
    out, _ = process.communicate(b"again\n")
    assert process.returncode == 0
    assert out.decode().startswith("\nLight is scattered.")


def test_module_and_exit_status():
    def status(*arguments):
        return subprocess.run([sys.executable, "-m", "forwardpass", *arguments], capture_output=True).returncode

    assert status("models") == 0
    assert status("pull", "no-such-model") == 1
    assert status("no-such-command") == 2
