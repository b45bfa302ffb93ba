"""Headless Chromium through its DevTools pipe (file descriptors 3 and 4, messages ended by a zero byte): no library needed. It has no
network access."""
import base64
import json
import os
import shutil
import subprocess
import tempfile


def find_chromium():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_child, self.out = os.pipe()
        self.into, from_child = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
                 "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
                 f"--user-data-dir={self.folder.name}", "about:blank"]
        command = f'exec "$0" "$@" 3<&{to_child} 4>&{from_child}'
        self.process = subprocess.Popen(["bash", "-c", command, find_chromium(), *flags], pass_fds=(to_child, from_child),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_child)
        os.close(from_child)
        self.buffer, self.number, self.events = b"", 0, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def read(self):
        while b"\0" not in self.buffer:
            part = os.read(self.into, 1 << 20)
            if not part:
                raise RuntimeError("chromium exited")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, page, width, height=900, dark=False, script=True):
        """Loads a file; afterwards complaints() and requests() cover only this page."""
        self.call("Page.navigate", url="about:blank")
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.events.clear()
        self.call("Page.navigate", url=page.absolute().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.read())

    def complaints(self):
        self.call("Runtime.evaluate", expression="0")  # flushes pending events
        return [str(event["params"])[:300] for event in self.events
                if event.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")]

    def requests(self):
        urls = [event["params"]["request"]["url"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [url[:200] for url in urls if not url.startswith(("file://", "data:"))] + urls[1:] * (len([
            url for url in urls if url.startswith("file://")]) > 1)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"])[:500])
        return result["result"].get("value")

    def screenshot(self, file):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True,
                            clip={"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 9000), "scale": 1})
        file.write_bytes(base64.b64decode(picture["data"]))

    def close(self):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()
