/* Putting the page to work. */
const dress = (root) => {
  for (const element of figures(root)) {
    legend(element);
    values(element);
    drawWhenNear(element);
  }
};

follow();
document.body.append(make("p", "Left and right arrow keys step through the values.", { id: "step-help", class: "hidden" }));
themeButton();
dress(document);
sortable();
clientPanel();
