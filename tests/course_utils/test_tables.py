"""Do rows of cells become an aligned table of text, and one of HTML that holds only text?"""

from course_utils import tables


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_end_at_the_right():
    rows = [("a", "1", "x"), ("bbbb", "1,000", "")]
    assert tables.text(rows, ("name", "n", "note"), right={1}) == "name      n  note\na         1  x\nbbbb  1,000"
    assert tables.text(rows) == "a     1      x\nbbbb  1,000"


def test_html_has_a_head_names_of_rows_and_attributes_and_what_cells_hold_is_escaped():
    assert tables.to_html([("<b>", "&")]) == "<table><tr><td>&lt;b&gt;</td><td>&amp;</td></tr></table>"
    assert tables.to_html(
        [("a", "1")], ("<h>", ""), caption="<c>", named=True, attributes={1: 'style="x"'}
    ) == (
        '<table><caption>&lt;c&gt;</caption><thead><tr><th scope="col">&lt;h&gt;</th><td></td></tr></thead>'
        '<tbody><tr><th scope="row">a</th><td style="x">1</td></tr></tbody></table>'
    )  # fmt: skip
