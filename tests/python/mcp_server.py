"""A calculator as an MCP server, by the official SDK: `mcp_server.py stdio` or `mcp_server.py http PORT`."""
import os
import sys
import time

from mcp.server.fastmcp import FastMCP, Image

server = FastMCP("calculator", port=int((sys.argv[2:] or [0])[0]), log_level="ERROR")
memory = {"seed": None, "added": 0}


@server.custom_route("/health", methods=["GET"])
async def health(_):
    from starlette.responses import PlainTextResponse
    return PlainTextResponse("ready")


@server.tool()
def add(a: float, b: float) -> float:
    """Adds two numbers."""
    memory["added"] += 1
    if memory["added"] == int(os.environ.get("DIES_AFTER", 0)):
        die()
    return a + b


@server.tool()
def divide(a: float, b: float) -> float:
    """Divides a number by another."""
    return a / b


@server.tool()
def state() -> dict:
    """Shows the seed, and the number of sums since the start."""
    return memory


@server.tool()
def repeat(text: str, times: int) -> str:
    """Repeats a text."""
    return text * times


@server.tool()
def picture() -> Image:
    """Draws."""
    return Image(data=b"\x89PNG", format="png")


@server.tool()
def begin(seed: int) -> str:
    """Begins an episode: the reset tool."""
    memory.update(seed=seed, added=0)
    return "begun"


@server.tool()
def score(task: dict, answer: str) -> float:
    """Scores an answer: the score tool."""
    return 2.5 if answer == str(task["answer"]) else -1.0


@server.tool()
def die() -> str:
    """Ends the server."""
    print("no more numbers", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
async def hang() -> str:
    """Blocks the server."""
    time.sleep(600)


if __name__ == "__main__":
    server.run("stdio" if sys.argv[1] == "stdio" else "streamable-http")
