//! As `distributions` of scale.py. It starts `wait_ms` milliseconds after the message.

use std::time::Duration;

use inferlet::{sleep, Args, Context, Result};

inferlet::main!(main);

const K: usize = 256; // as in Python, where nothing else is said

async fn main(args: Args) -> Result<()> {
    let (tokens, wait): (usize, usize) = (args.required("tokens")?, args.required("wait_ms")?);
    let mut context = Context::new(args.model())?;
    context.fill("Once upon a time there was");
    context.flush().await?;
    args.send("ready").await?;
    args.receive().await?;
    sleep(Duration::from_millis(wait as u64)).await?;
    let mut text = String::new();
    for number in 0..tokens {
        let token = context.next_dist(K, 1.0).await?.max_index();
        context.fill_tokens(&[token])?;
        text.push(char::from_u32(token).unwrap_or('?'));
        if number == 0 {
            args.send(std::mem::take(&mut text)).await?;
        }
    }
    args.send(text).await?;
    args.receive().await.map(|_| ()) // so that its end costs nothing in the measured time
}
