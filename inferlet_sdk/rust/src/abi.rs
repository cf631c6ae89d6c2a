//! How values cross between the program and the host: the canonical ABI of the component model.
//!
//! A list of numbers that the host returns is taken over as it is, without a copy.

use std::alloc::Layout;
use std::mem::{self, MaybeUninit};

use crate::error::Code;
pub use crate::error::Error;

/// Bytes that one call may pass, or the sandbox ends the inferlet; and what a number in a list counts as.
const LARGEST: usize = 8 << 20;
const A_NUMBER: usize = 50;

/// A value as the canonical ABI stores it in memory.
pub trait Lift: Sized {
    /// Its size, a multiple of `ALIGN`.
    const SIZE: usize;
    /// Its alignment.
    const ALIGN: usize;

    /// Reads it, and takes over what it owns.
    ///
    /// # Safety
    /// The host has just stored such a value there, and nobody reads it a second time.
    unsafe fn lift(at: *const u8) -> Self;

    /// Takes over a list of such values.
    ///
    /// # Safety
    /// As of `lift`; the host has allocated the list by `cabi_realloc`.
    unsafe fn lift_list(at: *mut u8, count: usize) -> Vec<Self> {
        let values = (0..count).map(|n| Self::lift(at.add(n * Self::SIZE))).collect();
        if count > 0 {
            let layout = Layout::from_size_align_unchecked(count * Self::SIZE, Self::ALIGN);
            std::alloc::dealloc(at, layout);
        }
        values
    }
}

macro_rules! lift_numbers {
    ($($kind:ty),*) => {$(
        impl Lift for $kind {
            const SIZE: usize = mem::size_of::<$kind>();
            const ALIGN: usize = mem::size_of::<$kind>();

            unsafe fn lift(at: *const u8) -> Self {
                at.cast::<$kind>().read()
            }

            unsafe fn lift_list(at: *mut u8, count: usize) -> Vec<Self> {
                Vec::from_raw_parts(at.cast(), count, count)
            }
        }
    )*};
}

lift_numbers!(u8, u32, i32, u64, f32);

impl Lift for bool {
    const SIZE: usize = 1;
    const ALIGN: usize = 1;

    unsafe fn lift(at: *const u8) -> Self {
        at.read() != 0
    }
}

impl Lift for () {
    const SIZE: usize = 0;
    const ALIGN: usize = 1;

    unsafe fn lift(_: *const u8) -> Self {}
}

impl<T: Lift> Lift for Vec<T> {
    const SIZE: usize = 8;
    const ALIGN: usize = 4;

    unsafe fn lift(at: *const u8) -> Self {
        let pair = at.cast::<u32>();
        T::lift_list(pair.read() as usize as *mut u8, pair.add(1).read() as usize)
    }
}

impl Lift for String {
    const SIZE: usize = 8;
    const ALIGN: usize = 4;

    unsafe fn lift(at: *const u8) -> Self {
        String::from_utf8_unchecked(Vec::lift(at))
    }
}

impl Lift for Error {
    const SIZE: usize = 16;
    const ALIGN: usize = 4;

    unsafe fn lift(at: *const u8) -> Self {
        let code = String::lift(at);
        Error::from_host(&code, String::lift(at.add(8)))
    }
}

const fn larger(one: usize, other: usize) -> usize {
    if one > other {
        one
    } else {
        other
    }
}

const fn aligned(size: usize, align: usize) -> usize {
    (size + align - 1) / align * align
}

impl<T: Lift> Lift for Option<T> {
    const ALIGN: usize = T::ALIGN;
    const SIZE: usize = aligned(T::ALIGN + T::SIZE, T::ALIGN);

    unsafe fn lift(at: *const u8) -> Self {
        (at.read() != 0).then(|| T::lift(at.add(T::ALIGN)))
    }
}

impl<T: Lift, E: Lift> Lift for Result<T, E> {
    const ALIGN: usize = larger(T::ALIGN, E::ALIGN);
    const SIZE: usize = aligned(Self::ALIGN + larger(T::SIZE, E::SIZE), Self::ALIGN);

    unsafe fn lift(at: *const u8) -> Self {
        let value = at.add(Self::ALIGN);
        if at.read() == 0 {
            Ok(T::lift(value))
        } else {
            Err(E::lift(value))
        }
    }
}

macro_rules! lift_tuple {
    ($first:ident $(, $kind:ident)*) => {
        impl<$first: Lift $(, $kind: Lift)*> Lift for ($first, $($kind,)*) {
            const ALIGN: usize = {
                let align = $first::ALIGN;
                $(let align = larger(align, $kind::ALIGN);)*
                align
            };
            const SIZE: usize = {
                let size = $first::SIZE;
                $(let size = aligned(size, $kind::ALIGN) + $kind::SIZE;)*
                aligned(size, Self::ALIGN)
            };

            #[allow(non_snake_case, unused_assignments)]
            unsafe fn lift(at: *const u8) -> Self {
                let mut place = $first::SIZE;
                let $first = $first::lift(at);
                $(
                    place = aligned(place, $kind::ALIGN);
                    let $kind = $kind::lift(at.add(place));
                    place += $kind::SIZE;
                )*
                ($first, $($kind,)*)
            }
        }
    };
}

lift_tuple!(A, B);
lift_tuple!(A, B, C);
lift_tuple!(A, B, C, D);

/// Makes a call whose result the host stores in memory.
///
/// # Safety
/// The import has to store a value of this type.
pub unsafe fn call<T: Lift>(import: impl FnOnce(*mut u8)) -> T {
    let mut area = MaybeUninit::<[u64; 8]>::uninit();
    debug_assert!(T::SIZE <= mem::size_of::<[u64; 8]>());
    let at = area.as_mut_ptr().cast::<u8>();
    import(at);
    T::lift(at)
}

/// What a list of numbers counts as.
pub fn size_of<T>(given: &[T]) -> usize {
    given.len().saturating_mul(A_NUMBER)
}

/// What a list of texts counts as.
pub fn size_of_texts(given: &[&str]) -> usize {
    given.iter().fold(0, |size, text| size.saturating_add(A_NUMBER + text.len()))
}

/// As much of a text as any call passes; a log, or an error of a program, keeps less.
pub fn passed(text: &str) -> &str {
    let mut end = text.len().min(LARGEST / 2);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// An error if the arguments of a call count as more than one call passes.
pub fn check_size(name: &str, sizes: &[usize]) -> Result<(), Error> {
    let size = sizes.iter().fold(0usize, |all, size| all.saturating_add(*size));
    if size <= LARGEST {
        return Ok(());
    }
    let message = format!(
        "{}: one call passes at most {} bytes, where a number in a list counts as {}, and not {}: give less at a time",
        name, LARGEST, A_NUMBER, size
    );
    Err(Error::with(Code::TooLong, message))
}

/// A list of texts, as an argument.
pub fn texts(given: &[&str]) -> Vec<[usize; 2]> {
    given.iter().map(|text| [text.as_ptr() as usize, text.len()]).collect()
}

/// Allocates for what the host stores.
///
/// # Safety
/// The host calls it with sizes of its own earlier calls.
#[cfg(target_arch = "wasm32")]
#[no_mangle]
pub unsafe extern "C" fn cabi_realloc(old: *mut u8, old_size: usize, align: usize, size: usize) -> *mut u8 {
    if size == 0 {
        return align as *mut u8;
    }
    let found = if old_size == 0 {
        std::alloc::alloc(Layout::from_size_align_unchecked(size, align))
    } else {
        std::alloc::realloc(old, Layout::from_size_align_unchecked(old_size, align), size)
    };
    if found.is_null() {
        std::alloc::handle_alloc_error(Layout::from_size_align_unchecked(size, align));
    }
    found
}
