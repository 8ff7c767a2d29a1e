//! The page at `/`, for a person who opens the port in a browser. It has no script.

use axum::response::Html;

/// Links to what the port serves, and forms that read the past.
pub(crate) async fn home_page() -> Html<&'static str> {
    Html(
        r#"<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Freezeframe</title>
<h1>Freezeframe</h1>
<p>A moment is a time, <code>yesterday 14:00</code>,
<code>-10m</code>, <code>now</code>, or a pin, <code>pin:NAME</code>. Times are in UTC.</p>

<form action="/v1/topics">
<p><label>The topics of <input name="at" value="now"></label> <button>Show</button></p>
</form>
<form action="/v1/groups">
<p><label>The groups of <input name="at" value="now"></label> <button>Show</button></p>
</form>
<form action="/v1/diff">
<p><label>What changed from <input name="from" value="-10m"></label>
<label>until <input name="until" value="now"></label> <button>Show</button></p>
</form>
<form action="/v1/tree/topics">
<p><label>The files of <input name="at" value="now"></label> <button>List</button></p>
</form>

<ul>
<li><a href="/v1/health">What is well, and what is not</a>
<li><a href="/metrics">Metrics</a>, for Prometheus
<li><a href="/v1/openapi.json">The API</a>, in OpenAPI 3.1
<li><a href="/commands">ZooKeeper's commands</a>
</ul>
"#,
    )
}
