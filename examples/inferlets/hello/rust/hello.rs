use inferlet::{Args, Context, Result};

inferlet::main!(main);

async fn main(args: Args) -> Result<()> {
    let mut ctx = Context::new(args.model())?;
    ctx.user("Write three facts about bees.")?;
    let mut generation = ctx.generate(60);
    while let Some(piece) = generation.next().await? {
        args.send(piece).await?;
    }
    Ok(())
}
