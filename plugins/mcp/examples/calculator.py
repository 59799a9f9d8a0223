"""A calculator as an MCP server over standard input and output. docs/mcp.md shows how to train on it."""
from mcp.server.fastmcp import FastMCP

server = FastMCP("calculator")


@server.tool()
def multiply(a: float, b: float) -> float:
    """Multiplies two numbers."""
    return a * b


@server.tool()
def add(a: float, b: float) -> float:
    """Adds two numbers."""
    return a + b


server.run("stdio")
