from tests.support.executors import executors_socket

__all__ = ["executors_socket"]
