//! What holds of the sources as a whole: the floors of the modules, and the list of what the tests show.

mod floors;
mod ids;
mod paths;
