//! As first_message.py.

use inferlet::{Args, Result};

inferlet::main!(main);

async fn main(args: Args) -> Result<()> {
    args.send("here").await
}
