"""Workers that train by a rule, one kind of course for each kind of rule.

What the worlds do with messages is done here by hand, in one thread and in an order that the test
chooses. All that a course remembers are arrays, so that it can be saved and gone on with.
"""

from itertools import pairwise

import numpy as np


class Course:
    """Workers that set out from the same weights; a step is plain gradient descent."""

    def __init__(self, rule, start, workers, weights, lr):
        self.rule, self.lr, self.weights = rule, lr, weights or [1.0] * workers
        self.replicas = np.tile(np.asarray(start, dtype=np.float64), (workers, 1))
        self.steps = np.zeros(workers, int)

    def turn(self, gradient, order=None):
        """A step of each worker; where they need not wait, of those in `order`."""
        for worker in range(len(self.replicas)) if order is None else order:
            self.replicas[worker] -= self.lr * gradient(worker, self.replicas[worker])
            self.steps[worker] += 1
            self.after_step(worker)

    def middle(self):
        """The weights that would be validated."""
        first = self.replicas[0]
        return first + (self.replicas - first).mean(axis=0)  # exact where all are equal

    def arrays(self):
        """All that is remembered, by name."""
        return {"replicas": self.replicas, "steps": self.steps}

    def load(self, saved):
        for name, array in self.arrays().items():
            array[...] = saved[name]


class GradientCourse(Course):
    """Before each step all exchange their gradients."""

    def turn(self, gradient, order=None):
        sent = [np.full_like(replica, np.nan) for replica in self.replicas]
        for worker, (replica, weight) in enumerate(zip(self.replicas, self.weights, strict=True)):
            own = gradient(worker, replica)
            self.rule.contribute(own, weight, out=sent[worker])
        merged = np.full_like(sent[0], np.nan)
        self.rule.merge(np.sum(sent, axis=0), sum(self.weights), out=merged)
        self.replicas -= self.lr * merged


class WeightCourse(Course):
    """When their period is over, all exchange their weights."""

    def __init__(self, rule, start, workers, weights, lr):
        super().__init__(rule, start, workers, weights, lr)
        self.states = [rule.init_state(replica) for replica in self.replicas]
        if not rule.weighted_by_samples:
            self.weights = [1.0] * workers

    def turn(self, gradient, order=None):
        super().turn(gradient)
        if self.rule.period.is_over(steps=self.steps[0], seconds=0.0):
            self.steps[:] = 0
            self.meet()

    def after_step(self, worker):
        pass

    def meet(self):
        sent = [np.full_like(replica, np.nan) for replica in self.replicas]
        everyone = list(zip(self.replicas, self.states, self.weights, sent, strict=True))
        for replica, state, weight, out in everyone:
            before = replica.tobytes()
            self.rule.contribute(replica, state, weight, out=out)
            assert replica.tobytes() == before
        for replica, state, _, _ in everyone:
            self.rule.merge(np.sum(sent, axis=0), sum(self.weights), replica, state)
        centres = {state["centre"].tobytes() for state in self.states if "centre" in state}
        assert len(centres) <= 1  # all workers agree

    def middle(self):
        centre = self.rule.centre(self.states[0])
        return super().middle() if centre is None else centre

    def arrays(self):
        return {**super().arrays(), **_named("state", self.states)}


class CentreCourse(Course):
    """After a step, its worker alone exchanges with the centre, piece by piece."""

    def __init__(self, rule, start, workers, weights, lr, pieces=1):
        super().__init__(rule, start, workers, weights, lr)
        self.centre = self.replicas[0].copy()
        edges = [self.centre.size * piece // pieces for piece in range(pieces + 1)]
        self.pieces = [slice(*edge) for edge in pairwise(edges)]
        self.centre_states = [
            rule.init_centre(piece.stop - piece.start, self.centre.dtype) for piece in self.pieces
        ]
        self.states = [rule.init_worker(replica) for replica in self.replicas]
        self.since_push, self.seen = np.zeros(workers, int), np.zeros(workers, int)
        self.updates, self.refused = np.zeros(1, int), np.zeros(1, int)

    def after_step(self, worker):
        self.since_push[worker] += 1
        push, pull = self.rule.due(self.steps[worker])
        scale = self.rule.staleness_weight(self.updates[0] - self.seen[worker])
        terms = self.rule.terms(self.steps[worker], self.since_push[worker], len(self.replicas))
        terms = terms._replace(scale=scale)
        pull = pull or (push and not scale)
        for piece, centre_state in zip(self.pieces, self.centre_states, strict=True):
            self.exchange(worker, push, pull, terms, piece, centre_state)
        if push:
            self.since_push[worker] = 0
            self.updates += scale > 0
            self.refused += scale == 0
        if pull:
            self.seen[worker] = self.updates[0]

    def exchange(self, worker, push, pull, terms, piece, centre_state):
        replica, centre = self.replicas[worker][piece], self.centre[piece]
        state = {name: vector[piece] for name, vector in self.states[worker].items()}
        message = np.full_like(replica, np.nan)
        if push:
            self.rule.make_push(replica, state, terms, out=message)
            if terms.scale:
                self.rule.absorb(message, centre, centre_state, terms)
        if pull:
            reply = message if self.rule.reply_kind == "move" else centre
            before = reply.tobytes()
            self.rule.apply_reply(reply, replica, replica, state)
            assert reply.tobytes() == before

    def middle(self):
        return self.centre

    def arrays(self):
        own = {name: getattr(self, name) for name in ("centre", "since_push", "seen", "updates")}
        centre = _named("centre_state", self.centre_states)
        return {**super().arrays(), **own, **centre, **_named("state", self.states)}


class PeerCourse(Course):
    """After a step, its worker may send its replica to another."""

    def __init__(self, rule, start, workers, weights, lr):
        super().__init__(rule, start, workers, weights, lr)
        self.shares = np.full(workers, 1.0 / workers)

    def after_step(self, worker):
        rng = np.random.default_rng([worker, self.steps[worker]])
        if len(self.replicas) > 1 and self.rule.wants_to_push(rng):
            peer = self.rule.choose_peer(rng, worker, len(self.replicas))
            share = self.shares[worker] = self.rule.split_weight(self.shares[worker])
            self.shares[peer] = self.rule.merge(
                self.replicas[peer], self.shares[peer], self.replicas[worker].copy(), share
            )

    def arrays(self):
        return {**super().arrays(), "shares": self.shares}


COURSES = {
    "gradients": GradientCourse,
    "weights": WeightCourse,
    "centre": CentreCourse,
    "gossip": PeerCourse,
}


def set_out(rule, start, workers, weights=None, lr=0.1, **more):
    """A course of the kind that the rule needs."""
    rule = rule.resolve(lossy=False)
    return COURSES[rule.exchange_kind](rule, start, workers, weights, lr, **more)


def random_order(rng, slow=2):
    """Three workers in the order of chance, one of them three times slower than the others."""
    return rng.permutation([worker for worker in range(3) for _ in range(1 + 2 * (worker != slow))])


def _named(prefix, states):
    return {
        f"{prefix}.{i}.{key}": vector for i, s in enumerate(states) for key, vector in s.items()
    }
