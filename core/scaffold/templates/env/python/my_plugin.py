"""Walk over the cells 0 to 9 to a target by saying "up" or "down"."""


class Walk:
    template = "{{ observation }}"
    num_tasks = {"train": 50, "eval": 40}

    def reset(self, split, task, seed):
        # The distance is odd in the tasks of split train, and even in those of eval.
        if not 0 <= task < self.num_tasks[split]:
            raise ValueError(f"there is no task {task} in split {split}")
        first, each = (2, 4) if split == "eval" else (1, 5)
        self.at, other = divmod(task, each)
        self.target = (self.at + first + 2 * other) % 10
        self.steps = 0
        return self.text()

    def text(self):
        return f"at {self.at}, go {self.target - self.at:+}"

    def step(self, action):
        if action == "up":
            self.at = min(self.at + 1, 9)
        elif action == "down":
            self.at = max(self.at - 1, 0)
        self.steps += 1
        won = self.at == self.target
        return self.text(), float(won), won, not won and self.steps >= 20, {"won": won}

    # All below is optional.
    def parse(self, response):
        """The action that the whole response is; None is not valid. By default: <think>…</think><action>…</action>."""
        return response if response in ("up", "down") else None

    def admissible(self):
        return ["up", "down"]

    def anchor(self):
        """Equal where the state is equal: no step counter."""
        return f"{self.at}/{self.target}"

    def expert(self):
        """A warm start imitates the expert."""
        return "up" if self.target > self.at else "down"
