mod attempts;
mod collector;
mod conflicting;
mod crashes;
mod random;
mod script;
mod stage;
mod world;
