#pragma once
// An HTML page of results (a run, a sweep) from JSON. The page is self-contained: no network, no
// other file. Text and tables are plain HTML; the page's own script (page.js) draws lines and heat
// maps from JSON inside the page. All text is untrusted and escaped.
//
// The page; keys with a default are optional:
//   program   "moe train": the command that wrote it
//   state     "finished", next to the program; default none
//   title     the headline
//   facts     [{name, value, note}]: the most important numbers; note is smaller, default none
//   notes     [{text, is_warning}]: remarks about the results; default no warning
//   x         the horizontal AXIS of its panels
//   sections  [{id, title, note, x, panels: [PANEL]}], from top to bottom. id is the anchor of
//             #id; an empty title is not shown, note is below the title, x replaces the page's x.
//             Sections without panels are omitted. Drawn panels (lines, bars, heat map) do not
//             share a section with others.
//   footer    a sentence about the page; default none
//
// An AXIS is {label} (whole numbers), {label, names} (positions 0, 1, .. with a name each) or
// {label, ranges: [[first, last]]} (columns of a heat map over whole numbers). All panels whose
// axes have the same label show the point that is selected by mouse, finger or arrow keys.
//
// A PANEL is one of, by its "kind":
//   lines     title, series; subtitle; is_wide: uses the whole row; rule: {name, value}, a dashed
//             horizontal line; y: {from_zero, log}: a button switches to a log scale if log is
//             present and all values are positive (true: initially on); start: {name, x}:
//             points before x are hidden until a button called name is pressed (if at least two
//             points remain). A series is {name, x: [whole numbers], y: [..]} and may have low,
//             high: [..] (an interval around each y: a bar on an axis of names, else a band),
//             smooth: {x, y}: drawn in front of the series, and is_marked: a dot per point if there
//             are at most 80.
//   bars      like lines, from zero and on an axis of names: no y, start, smooth and is_marked
//   heat map  title, subtitle, y: {label, names}: the rows, values: [..] column by column, in
//             hundredths of an equal share (100 = balanced, 0 = nothing)
//   table     columns: [..], rows: [{name, cells: [text]}]; the first column has the names
//   fields    rows: [{name, text}]: names next to texts
//   texts     title, texts: [{name, text}]: long texts below a title; an empty one is "nothing"
//   text      text, unchanged

#include <string>

#include "core/base/json.h"

namespace moe {

// Returns the HTML of `page`.
std::string make_page(OrderedJson page);

// Rounds `value` to five significant digits, to keep pages small.
double round_for_screen(double value);

}  // namespace moe
