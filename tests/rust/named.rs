//! Contexts that are exported under a name.

use inferlet::*;

/// What is told of an export by the adapter with which it was made, and of a name that names one.
pub async fn adapted(model: &str) -> Result<Json> {
    let mut found = Vec::<Json>::new();
    for (made, asked) in [("poet", ""), ("", "poet"), ("painter", "painter")] {
        let mut ctx = Context::with(model, made, 0)?;
        ctx.fill("Once upon a time ").export("king").await?;
        let opened = Context::open("king", model, asked).await;
        found.push(opened.map_or_else(|error| error.to_string(), |_| "found".to_string()).into());
        found.push(
            ctx.export("king (adapter poet)").await.err().map(|error| error.code == Code::InvalidArgument).to_json(),
        );
    }
    Ok(Json::List(found))
}
