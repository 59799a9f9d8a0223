"""An environment that does nothing, for the time of a step (overhead.rs)."""


class Echo:
    def reset(self, seed):
        return "You are in the middle of a room. Looking quickly around you, you see a shelf 1, and a desk 1. " * 4

    def step(self, action):
        return f"You {action}. On it you see a book 1. " * 10, 0.0, False, False, {"won": False, "admissible_actions": ["go", "look"] * 10}
