/* The newest roundtable of the signed-in user, live: an example of a host's own page. It asks the
   public API for what came after the last turn it has, and shows text as text. */
(() => {
    "use strict";

    const mine = document.getElementById("mine");
    const place = Object.fromEntries(
        ["title", "state", "cancel", "resume", "turns"].map((id) => [id, document.getElementById(id)]),
    );
    const ENDED = ["done", "error", "cancelled", "quarantined"];
    const fill = (text, values) => text.replace(/%\((\w+)\)s/g, (_, name) => values[name] ?? "");
    let job = null;
    let last = 0;

    async function ask(url, method = "GET") {
        const headers = { Accept: "application/json" };
        if (method !== "GET") {
            headers["X-CSRFToken"] = document.cookie.match(/csrftoken=([^;]+)/)?.[1] ?? "";
            headers["Content-Type"] = "application/json";
        }
        const body = method === "GET" ? undefined : "{}";
        const answer = await fetch(url, { method, headers, body, cache: "no-store" });
        const found = await answer.json();
        if (!answer.ok) throw new Error(found.detail || found.title || answer.status);
        return found;
    }

    function showState() {
        const percent = job.consensus;
        place.title.textContent = job.title;
        place.state.textContent = [
            fill(mine.dataset.state, job),
            percent === null ? "" : fill(mine.dataset.consensus, { percent }),
            job.cause?.text ?? "",
        ].filter(Boolean).join(", ");
        place.cancel.hidden = ENDED.includes(job.state) || job.state === "cancelling";
        place.resume.hidden = !["error", "cancelled", "quarantined"].includes(job.state);
    }

    function showTurn(turn) {
        const item = document.createElement("li");
        const who = document.createElement("strong");
        const what = document.createElement("span");
        const text = document.createElement("p");
        who.textContent = turn.name || turn.seat;
        what.textContent = ` ${fill(mine.dataset.round, turn)}`;
        const ballot = turn.data?.ballot;
        const stance = String(ballot?.stance ?? "").replaceAll("_", " ");
        text.textContent = ballot ? `${stance} (${ballot.confidence} %)` : turn.text;
        item.append(who, what, text);
        place.turns.append(item);
        last = Math.max(last, turn.seq ?? 0);
    }

    async function look() {
        try {
            if (!job) {
                [job] = (await ask(`${mine.dataset.url}?limit=1`)).results;
                if (!job) {
                    place.state.textContent = mine.dataset.empty;
                    return;
                }
            }
            job = await ask(job.links.self);
            const more = await ask(`${job.links.turns}?after=${last}&limit=200`);
            more.results.forEach(showTurn);
            showState();
        } catch (error) {
            place.state.textContent = fill(mine.dataset.failed, { why: error.message });
        }
        setTimeout(look, 1000);
    }

    const act = (name) => place[name].addEventListener("click", async () => {
        try {
            await ask(job.links[name], "POST");
        } catch (error) {
            place.state.textContent = fill(mine.dataset.failed, { why: error.message });
        }
    });
    act("cancel");
    act("resume");
    look();
})();
