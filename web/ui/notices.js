/* <RefusalNotice problem title />   why the service refused, one sentence per problem
   <NoPlanNotice />                  the content of a tab if no plan fits
   <Loading when=${…} />             the content of a tab before its first answer */

import { html } from "htm/preact";

export function RefusalNotice({ problem, title, children }) {
  if (!problem) return null;
  const errors = problem.errors?.length ? problem.errors : [{ detail: problem.detail || problem.title }];
  return html`<div class="notice bad" role="alert">
    ${title && html`<p><b>${title}</b></p>`}
    ${errors.map(({ detail }) => html`<p>${detail}</p>`)}
    ${children}
  </div>`;
}

export const NoPlanNotice = () => html`<p class="notice">No plan is shown because none fits. The top of the page lists changes that would fit.</p>`;

export const Loading = ({ when }) => when && html`<div class="loading" aria-busy="true"></div>`;
