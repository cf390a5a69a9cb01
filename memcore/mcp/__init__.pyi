# Written by scripts/make_faces from __init__.py.
from memcore.mcp.server import build_server as build_server
from memcore.mcp.transport import HttpPlace as HttpPlace
from memcore.mcp.transport import serve_http as serve_http
from memcore.mcp.transport import serve_stdio as serve_stdio

__all__ = [
    "HttpPlace",
    "build_server",
    "serve_http",
    "serve_stdio",
]
