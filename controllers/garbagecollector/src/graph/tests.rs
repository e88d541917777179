mod attempts;
mod collector;
mod conflicting;
mod random;
mod script;
mod stage;
mod world;
