//! Enums whose variants have names.

/// Defines an enum with the name of each variant beside it, in statistics, logs and messages.
#[macro_export]
macro_rules! named {
    ($(#[$about:meta])* pub enum $kind:ident {
        $($(#[$says:meta])* $variant:ident = $name:literal,)*
    }) => {
        $(#[$about])*
        pub enum $kind {
            $($(#[$says])* $variant,)*
        }

        impl $kind {
            /// Every variant, in the order of their discriminants.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// Returns the variant's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}
