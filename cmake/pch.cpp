// Owns nothing: a library must have a file, and those of cmake/precompiled.cmake are there for
// their header.
