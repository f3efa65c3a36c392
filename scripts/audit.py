"""Look up known vulnerabilities of the locked packages: `make audit`, and the last step of .ci/run.

    python scripts/audit.py                    audit requirements.lock
    python scripts/audit.py < report.json -    judge a report of pip-audit

A finding fails unless it is in ACCEPTED. The advisories are on the network and the lock is not, so a package that could
not be looked up is named and does not fail: a build must not depend on somebody else's server.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = ["pip-audit", "--disable-pip", "--require-hashes", "--format", "json", "-r", str(ROOT / "requirements.lock")]
ACCEPTED: dict[str, str] = {}  # the id of an advisory, and why it does not concern hmlet


def judge(report: str) -> int:
    """The exit status for a report, which is told in a line a finding: 1 if one is not accepted."""
    try:
        packages = json.loads(report)["dependencies"]
    except (ValueError, KeyError):
        print("note: pip-audit could not reach the advisories; nothing was audited")
        return 0
    found = [(package, each) for package in packages for each in package.get("vulns", [])]
    for package, each in found:
        fixed = ", ".join(each["fix_versions"]) or "no version"
        reason = f"accepted: {ACCEPTED[each['id']]}" if each["id"] in ACCEPTED else "upgrade with make lock"
        print(f"{package['name']} {package['version']}: {each['id']}, fixed in {fixed} ({reason})")
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    print(f"{len(packages) - len(skipped)} of {len(packages)} packages audited, {len(found)} findings")
    if skipped:
        print(f"note: not audited, because the index does not know them: {', '.join(skipped[:5])} …")
    return int(any(each["id"] not in ACCEPTED for _, each in found))


def main() -> int:
    if sys.argv[1:] == ["-"]:
        return judge(sys.stdin.read())
    done = subprocess.run(
        [str(Path(sys.executable).with_name(COMMAND[0])), *COMMAND[1:]], stdout=subprocess.PIPE, text=True
    )
    return judge(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
