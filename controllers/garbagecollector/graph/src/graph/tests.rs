mod attempts;
mod collector;
mod conflicting;
mod crashes;
mod fixtures;
mod random;
mod rules;
mod simulation;
