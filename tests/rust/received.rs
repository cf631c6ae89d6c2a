//! What comes with messages.

use inferlet::*;

/// What is told of a blob that came with the launch, and of one with each of three messages; the inferlet may hold only
/// one at a time.
pub async fn received(args: &Args) -> Result<Json> {
    let mut found = vec![told("given", &Blob::open("given")?)?];
    for _ in 0..3 {
        args.send("next").await?;
        let message = args.receive().await?;
        let (name, blob) = message.blobs.first().ok_or("no blob has come")?;
        found.push(told(name, blob)?);
    }
    Ok(Json::List(found))
}

/// Its name and size, its last byte, and two bytes in its middle.
fn told(name: &str, blob: &Blob) -> Result<Json> {
    Ok((name, blob.size()?, blob.bytes()?.last().copied(), blob.read(262_143, 2)?).to_json())
}
