"""Model Context Protocol: one user's memory and sessions as an MCP server.

``pip install "memcore-db[mcp]"``. Names are imported on first use.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "server": "build_server",
        "transport": "HttpPlace serve_http serve_stdio",
    },
    extra=("the MCP SDK", "mcp", ("mcp", "mcp_types", "pydantic", "anyio", "uvicorn", "starlette")),
)
