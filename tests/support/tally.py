"""What a script has checked: a line for each check, and the last line that the runner counts (tests/support/tally.sh)."""
import os
import sys

SHORT = os.environ.get("MOE_INTEROP_SHORT") == "1"  # of tests/interop: one case per form (tests/interop/run.sh)


class Tally:
    def __init__(self):
        self.passed = self.failed = 0

    def check(self, what, good, detail=""):
        self.passed, self.failed = self.passed + bool(good), self.failed + (not good)
        print(f"{'ok    ' if good else 'FAILED'} {what}{': ' if detail != '' else ''}{detail}", flush=True)

    def run(self, main):
        """The script itself: main() returns 77 where it is skipped, and has said why; anything else is finished here."""
        if main() == 77:
            sys.exit(77)
        self.finish()

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed, 0 skipped")
        sys.exit(1 if self.failed else 0)
