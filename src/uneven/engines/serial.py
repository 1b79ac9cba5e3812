"""One client after the other, in this process."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from uneven.data import Federation
from uneven.engines.base import Memories
from uneven.methods import Assignment, Client, Failure, Update


class SerialEngine:
    """Trains clients one by one. An exception in a client is a `Failure` that names where it came from."""

    def __init__(self, client: Client, federation: Federation) -> None:
        self._client, self._federation = client, federation
        self.memories: Memories = {}
        self._pending: Memories = {}

    def train(self, assignments: Sequence[Assignment]) -> Iterator[tuple[Assignment, Update | Failure]]:
        for assignment in assignments:
            yield assignment, self._train_one(assignment)

    def _train_one(self, assignment: Assignment) -> Update | Failure:
        client = assignment.client
        data = self._federation.clients[client].train
        try:
            update, memory = self._client.train(assignment.gathered(), data, self.memories.get(client, {}))
        except Exception as error:  # whatever a client does wrong is a fact about this client
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"
            return Failure(client, f"{type(error).__name__}: {error} ({place})")
        if memory:
            self._pending[client] = memory
        return update

    def commit(self, accepted: Iterable[int]) -> None:
        for client in accepted:
            if client in self._pending:
                self.memories[client] = self._pending[client]
        self._pending = {}
