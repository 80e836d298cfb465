"""The Hugging Face hub, as far as reading a dataset goes, over a folder on this machine."""

import contextlib
import hashlib
import http.server
import json
import pathlib
import threading
import urllib.parse

COMMIT = "c" * 40


@contextlib.contextmanager
def serve(folder, repo_id, monkeypatch, cache, status=200):
  """Serves a folder as the dataset `repo_id`; huggingface_hub sees no other hub meanwhile.

  Args:
    folder: the files of the repository.
    repo_id: "owner/name".
    monkeypatch: pytest's fixture.
    cache: folder of huggingface_hub's downloads.
    status: what every answer says; 401 or 403 as of a repository that is not public.

  Yields:
    The list of the requests so far, as (method, path).
  """
  requests = []

  class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
      del arguments

    def do_HEAD(self):
      self._answer()

    def do_GET(self):
      self._answer()

    def _answer(self):
      path = urllib.parse.unquote(self.path.partition("?")[0])
      requests.append((self.command, path))
      code = status
      if code != 200:
        body, headers = b"{}", {"X-Error-Code": "GatedRepo"}
      elif path.startswith(f"/api/datasets/{repo_id}"):
        names = [str(p.relative_to(folder)) for p in sorted(pathlib.Path(folder).rglob("*"))
                 if p.is_file()]
        body = json.dumps({"id": repo_id, "sha": COMMIT, "private": False, "tags": [],
                           "downloads": 0, "likes": 0,
                           "siblings": [{"rfilename": name} for name in names]}).encode()
        headers = {"Content-Type": "application/json"}
      elif (file := pathlib.Path(folder) / "/".join(path.split("/")[6:])).is_file():
        body = file.read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
      else:
        kind = "Repo" if path.startswith("/api/") else "Entry"
        code, body, headers = 404, b"{}", {"X-Error-Code": f"{kind}NotFound"}
      self.send_response(code)
      for name, value in {**headers, "Content-Length": len(body)}.items():
        self.send_header(name, str(value))
      self.end_headers()
      if self.command == "GET":
        self.wfile.write(body)

  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  from huggingface_hub import constants

  endpoint = f"http://127.0.0.1:{server.server_port}"
  monkeypatch.setattr(constants, "ENDPOINT", endpoint)
  monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE",
                      endpoint + "/{repo_id}/resolve/{revision}/{filename}")
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
  monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
  try:
    yield requests
  finally:
    server.shutdown()
    server.server_close()
