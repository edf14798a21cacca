"""Tables as Markdown and LaTeX."""

from __future__ import annotations

from fedcue.report.tables import Cell, Table, latex, markdown


def test_specials_are_escaped() -> None:
    table = Table(("method", "x"), ((Cell(r"a|b_c*<i>&%#{}$~^\[1]"), Cell("±", best=True)),))
    assert r"| a\|b\_c\*\<i\>&%\#\{\}\$\~^\\\[1\] | **±** |" in markdown(table)
    body = latex(table)
    assert r"a\textbar{}b\_c*\textless{}i\textgreater{}\&\%\#\{\}\$" in body
    assert r"\textasciitilde{}\textasciicircum{}\textbackslash{}{[}1{]} & \textbf{$\pm$} \\" in body
