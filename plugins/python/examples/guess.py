"""Guess a number from 1 to 8. The environment answers with the range that is left."""
import random


class Guess:
    template = "{{ observation }}\nAnswer with a number."
    num_tasks = {"train": 200, "eval": 50}

    def reset(self, split, task, seed):
        self.number = random.Random(f"{split} {task} {seed}").randint(1, 8)
        self.low, self.high, self.guesses = 1, 8, 0
        return self.text()

    def text(self):
        return f"from {self.low} to {self.high}"

    def parse(self, response):
        # None: the response has no number, which makes the step invalid.
        return response.strip() if response.strip().isdecimal() else None

    def step(self, action):
        self.guesses += 1
        guess = int(action) if action else 0
        if self.low <= guess < self.number:
            self.low = guess + 1
        elif self.number < guess <= self.high:
            self.high = guess - 1
        won = guess == self.number
        return self.text(), float(won), won, not won and self.guesses == 4, {"won": won}

    def admissible(self):
        return [str(number) for number in range(self.low, self.high + 1)]

    # Optional: an expert lets a recipe use warm_start and model.new.
    def expert(self):
        return str((self.low + self.high) // 2)
