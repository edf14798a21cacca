/* Putting the page to work. */
const dress = (root) => {
  legends(root);
  for (const element of figures(root)) {
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
