//! Base64, as which bytes cross to the host.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const VALUES: [u8; 256] = values();

const fn values() -> [u8; 256] {
    let mut found = [0; 256];
    let mut place = 0;
    while place < 64 {
        found[LETTERS[place] as usize] = place as u8;
        place += 1;
    }
    found
}

/// Bytes of a text that the host has written.
pub fn decode(text: &str) -> Vec<u8> {
    let letters = text.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::with_capacity(letters.len() / 4 * 3 + 3);
    for four in letters.chunks(4) {
        let bits = four.iter().fold(0u32, |bits, letter| bits << 6 | u32::from(VALUES[usize::from(*letter)]));
        let bits = bits << (6 * (4 - four.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}

/// Numbers of four bytes each, little-endian.
pub fn decode_numbers<T>(text: &str, of: fn([u8; 4]) -> T) -> Vec<T> {
    decode(text).chunks_exact(4).map(|four| of([four[0], four[1], four[2], four[3]])).collect()
}

/// The text of bytes.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity((bytes.len() + 2) / 3 * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place > three.len() { '=' } else { char::from(letter) });
        }
    }
    text
}

/// The text of numbers, little-endian.
pub fn encode_numbers(numbers: &[u32]) -> String {
    encode(&numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>())
}
