#pragma once
// An HTML file that shows results (a run, a sweep), described by JSON. It is self-contained: no
// network, no other file. Text and tables are plain HTML and need no script; the page's own script
// (page.js) draws lines and heat maps from JSON inside the page. All text is escaped: it is treated
// as hostile.
//
// The page, a key that has a default may be left out:
//   program   "moe train": what made it
//   state     "finished", next to the program; default none
//   title     the headline
//   facts     [{name, value, note}]: the few numbers to see first; note is smaller, default none
//   notes     [{text, is_warning}]: what to know before believing the rest; default no warning
//   x         the horizontal AXIS of its panels
//   sections  [{id, title, note, x, panels: [PANEL]}], from top to bottom. id is the anchor of
//             #id; an empty title shows none, note is below it, x is an AXIS of its own.
//             Sections without panels are left out. Drawn panels (lines, bars, heat map) do not
//             share a section with others.
//   footer    a sentence about the page; default none
//
// An AXIS is {label}: whole numbers, {label, names}: places 0, 1, .. with a name each, or {label,
// ranges: [[first, last]]}: columns of a heat map over whole numbers. A point that is pointed at,
// with mouse, finger or arrow keys, shows in all panels whose axes have the same label.
//
// A PANEL is one of, by its "kind":
//   lines     title, series; subtitle; is_wide: takes the whole row; rule: {name, value}, a dashed
//             horizontal line; y: {from_zero, log}: log there = the reader can change between a
//             linear and a log scale, its value = whether it starts as the latter (offered where
//             all values are positive); start: {name, x}: at first only x and later are shown, and
//             the reader can show what is before, which is called name (all is shown where fewer
//             than two points are left). A series is {name, x: [whole numbers], y: [..]} and may
//             have low, high: [..] (an interval around each y: a bar on an axis of names, else a
//             band), smooth: {x, y}: drawn in front, the series itself behind it, and is_marked: a
//             dot a point, where there are at most 80.
//   bars      as lines, from zero and on an axis of names: no y, start, smooth and is_marked
//   heat map  title, subtitle, y: {label, names}: the rows, values: [..] column by column, in
//             hundredths of an equal share (100 = balanced, 0 = nothing)
//   table     columns: [..], rows: [{name, cells: [text]}]; the first column has the names
//   fields    rows: [{name, text}]: names next to texts
//   texts     title, texts: [{name, text}]: long texts below a title; an empty one is "nothing"
//   text      text, as it is

#include <string>

#include "core/base/json.h"

namespace moe {

// Returns the page.
std::string make_page(OrderedJson page);

// Returns `value` with the significant digits that a screen can show, to keep pages small.
double round_for_screen(double value);

}  // namespace moe
