"""Tables as Markdown and LaTeX."""

from __future__ import annotations

from fedcue.report.tables import Cell, Table, latex, markdown


def test_specials_are_escaped() -> None:
    table = Table(("method", "x"), ((Cell(r"a|b_c*<i>&%#{}$~^\[1]"), Cell("±", best=True)),))
    assert r"| a\|b\_c\*\<i\>&%\#\{\}\$\~^\\\[1\] | **±** |" in markdown(table)
    body = latex(table)
    assert r"a\textbar{}b\_c*\textless{}i\textgreater{}\&\%\#\{\}\$" in body
    assert r"\textasciitilde{}\textasciicircum{}\textbackslash{}{[}1{]} & \textbf{$\pm$} \\" in body


def test_a_line_of_a_table_keeps_the_order_of_its_cells() -> None:
    table = Table(("method", "mean"), ((Cell("a"), Cell("1", best=True)), (Cell("b"), Cell("2"))))
    assert markdown(table) == "| method | mean |\n| --- | ---: |\n| a | **1** |\n| b | 2 |\n"
    assert latex(table).splitlines() == [
        r"\begin{tabular}{lr}", r"\toprule", r"method & mean \\", r"\midrule",
        r"a & \textbf{1} \\", r"b & 2 \\", r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip
