"""An HTTP server for programs that speak the OpenAI API; `specdec serve` starts it (docs/SERVER.md).

The server knows the engine (`specdec.decoding.engine`) by its public interface alone, and the engine knows
nothing of HTTP.
"""
