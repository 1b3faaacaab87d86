/* Search when the site is opened from the disk, where browsers refuse to start workers: the worker's script runs in a
   hidden frame instead, and messages go to and fro as events. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.srcdoc = "<!doctype html>"
      this.inner = new Promise((resolve, reject) => {
        frame.addEventListener("load", () => {
          const inner = frame.contentWindow
          const script = inner.document.createElement("script")
          inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
          script.src = url
          script.addEventListener("load", () => resolve(inner))
          script.addEventListener("error", reject)
          inner.document.head.append(script)
        }, { once: true })
      })
      document.documentElement.append(frame)
    }

    postMessage(data) {
      this.inner.then(inner => inner.dispatchEvent(new inner.MessageEvent("message", { data })))
    }
  }
}
