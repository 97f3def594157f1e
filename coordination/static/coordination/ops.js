/* Refreshes parts of a page in place. A part is an element with an id and data-ops-refresh
   (seconds); the same URL is asked for with the header X-Ops-Fragment and answers with that one
   element. Without this file the page is complete and its Reload link does the same. */
(() => {
    "use strict";

    const LONGEST_S = 60;

    function busy(part) {
        if (document.hidden || document.querySelector("dialog[open]")) return true;
        const focus = document.activeElement;
        if (focus && part.contains(focus) && focus.matches("input, select, textarea")) return true;
        const marked = window.getSelection();
        return Boolean(marked && !marked.isCollapsed && part.contains(marked.anchorNode));
    }

    function swap(part, html) {
        const fresh = new DOMParser().parseFromString(html, "text/html").getElementById(part.id);
        if (!fresh) throw new Error("the answer does not hold the part");
        part.setAttribute("aria-busy", "true");
        const before = new Set([...part.querySelectorAll("[data-ops-key]")].map((e) => e.dataset.opsKey));
        for (const item of fresh.querySelectorAll("[data-ops-key]")) {
            if (before.size && !before.has(item.dataset.opsKey)) item.classList.add("ops-new");
        }
        part.replaceChildren(...fresh.childNodes);
        part.removeAttribute("aria-busy");
    }

    function follow(part) {
        const every = Number(part.dataset.opsRefresh) || 5;
        const note = document.getElementById(part.dataset.opsNote || "");
        let tag = "";
        let wait = every;

        async function look() {
            if (!busy(part)) {
                try {
                    const headers = { "X-Ops-Fragment": part.id };
                    if (tag) headers["If-None-Match"] = tag;
                    const answer = await fetch(window.location.href, { headers, cache: "no-store" });
                    if (answer.status !== 304) {
                        if (!answer.ok) throw new Error(String(answer.status));
                        tag = answer.headers.get("ETag") || "";
                        swap(part, await answer.text());
                    }
                    wait = every;
                    if (note) note.hidden = true;
                } catch {
                    wait = Math.min(wait * 2, LONGEST_S);
                    if (note && note.hidden) {
                        const time = new Date().toLocaleTimeString();
                        note.textContent = note.dataset.opsText.replace("%(time)s", time);
                        note.hidden = false;
                    }
                }
            }
            setTimeout(look, wait * 1000);
        }
        setTimeout(look, every * 1000);
    }

    document.querySelectorAll("[data-ops-refresh]").forEach(follow);
})();
