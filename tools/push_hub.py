"""Pushes a folder written by tools/convert_hf.py to the Hugging Face Hub.

    python tools/push_hub.py --folder=exports/demo --repo_id=my-lab/t5-demo

Needs a token with write access: set HF_TOKEN or run `hf auth login`. It can be repeated.
"""

import argparse
import sys

from t5jax.convert import hub


def parse_args(args=None):
  """Returns the command line's values."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--folder", required=True, help="what tools/convert_hf.py wrote")
  parser.add_argument("--repo_id", required=True, help="name/model or organisation/model")
  parser.add_argument("--private", action="store_true", help="if the repository is new")
  parser.add_argument("--message", default="Upload model", help="of the commit")
  return parser.parse_args(args)


def main():
  """Exit status 1 and one line on stderr when anything fails."""
  args = parse_args()
  try:
    url = hub.push(args.folder, args.repo_id, private=args.private, message=args.message)
  except (ValueError, ImportError, hub.HubError) as error:
    sys.exit(f"push_hub: {' '.join(str(error).split())}")
  print(f"Pushed {args.folder}: {url}")


if __name__ == "__main__":
  main()
